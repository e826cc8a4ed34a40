# Everything is made below build/. See CONTRIBUTING.md for what the targets do.

PREFIX   ?= /usr/local
BINDIR   ?= $(PREFIX)/bin
MANDIR   ?= $(PREFIX)/share/man
BASHDIR  ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR   ?= $(PREFIX)/share/zsh/site-functions
FISHDIR  ?= $(PREFIX)/share/fish/vendor_completions.d
UNITDIR  ?= $(PREFIX)/lib/systemd/system
# mount(8) looks for its helpers here and nowhere else. Empty: no link is made.
SBINDIR  ?= /sbin
INSTALL  ?= install

# What the program says of itself. Git may not trust a tree of another user's,
# as under sudo; then it is left out.
ifndef VERSION
VERSION  := $(shell git describe --tags --always --dirty 2>/dev/null)
endif

# The go command would fail where git does not trust the tree.
export GOFLAGS += -buildvcs=false
# Man pages bear the date of the last change, so that they can be reproduced.
ifndef SOURCE_DATE_EPOCH
SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || date +%s)
endif
export SOURCE_DATE_EPOCH

# Benchmarks of the parts: how often, and which.
COUNT    ?= 1
BENCH    ?= .
# Arguments of the harness that measures against other programs, as -quick.
BENCHFLAGS ?=
# How long each fuzz test runs.
FUZZTIME ?= 1m

GO       := scripts/go.sh
SOURCES  := go.mod go.sum $(shell find . -name '*.go' ! -name '*_test.go' -o -name '*.s')

.PHONY: build install uninstall clean test demo bench bench-go lint fuzz
.DELETE_ON_ERROR:

build: build/hashfs build/docs build/hashfs@.service

build/hashfs: $(SOURCES)
	$(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o $@ ./cmd/hashfs

build/docs: $(SOURCES)
	rm -rf $@
	$(GO) run ./cmd/hashfs/internal/gendocs -version '$(VERSION)' -man $@/man -completions $@/completions

build/hashfs@.service: packaging/hashfs@.service.in Makefile
	mkdir -p build
	sed 's|@BINDIR@|$(BINDIR)|' $< > $@

install: build
	$(INSTALL) -D -m 0755 build/hashfs '$(DESTDIR)$(BINDIR)/hashfs'
	$(INSTALL) -d '$(DESTDIR)$(MANDIR)/man1'
	$(INSTALL) -m 0644 build/docs/man/*.1 '$(DESTDIR)$(MANDIR)/man1'
	$(INSTALL) -D -m 0644 build/docs/completions/hashfs.bash '$(DESTDIR)$(BASHDIR)/hashfs'
	$(INSTALL) -D -m 0644 build/docs/completions/_hashfs '$(DESTDIR)$(ZSHDIR)/_hashfs'
	$(INSTALL) -D -m 0644 build/docs/completions/hashfs.fish '$(DESTDIR)$(FISHDIR)/hashfs.fish'
	$(INSTALL) -D -m 0644 build/hashfs@.service '$(DESTDIR)$(UNITDIR)/hashfs@.service'
ifneq ($(SBINDIR),)
	$(INSTALL) -d '$(DESTDIR)$(SBINDIR)'
	ln -sfn '$(BINDIR)/hashfs' '$(DESTDIR)$(SBINDIR)/mount.fuse.hashfs'
endif

uninstall:
	rm -f '$(DESTDIR)$(BINDIR)/hashfs' '$(DESTDIR)$(MANDIR)'/man1/hashfs.1 '$(DESTDIR)$(MANDIR)'/man1/hashfs-*.1
	rm -f '$(DESTDIR)$(BASHDIR)/hashfs' '$(DESTDIR)$(ZSHDIR)/_hashfs' '$(DESTDIR)$(FISHDIR)/hashfs.fish'
	rm -f '$(DESTDIR)$(UNITDIR)/hashfs@.service'
ifneq ($(SBINDIR),)
	rm -f '$(DESTDIR)$(SBINDIR)/mount.fuse.hashfs'
endif

clean:
	rm -rf build

demo:
	scripts/demo.sh

test:
	scripts/test.sh

lint:
	scripts/lint.sh

bench: build/hashfs
	scripts/bench.sh $(BENCHFLAGS)

bench-go:
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -count $(COUNT) ./...

fuzz:
	FUZZTIME=$(FUZZTIME) scripts/fuzz.sh
