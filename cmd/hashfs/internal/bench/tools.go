package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os/exec"
	"strings"
)

// tools are the peers, and what else measures. Those that are not there are "".
type tools struct {
	openssl, b3sum, cat, fio, time string
	perf                           string
	qemuNBD, qemuImg, nbdkit       string
	plainNBDCopy                   string // any
	nbdcopy                        string // with --blkhash
	nbdcopyMissing                 string // why there is none
}

// A missingTool leaves rows without a result, and is no failure.
type missingTool string

func (m missingTool) Error() string { return string(m) }

func findTools(ctx context.Context, nbdcopy string) tools {
	find := func(name string) string {
		path, err := exec.LookPath(name)
		if err != nil {
			return ""
		}
		return path
	}
	t := tools{
		openssl: find("openssl"), b3sum: find("b3sum"), cat: find("cat"), fio: find("fio"),
		qemuNBD: find("qemu-nbd"), qemuImg: find("qemu-img"), nbdkit: find("nbdkit"), plainNBDCopy: find("nbdcopy"),
		perf: find("perf"),
		time: find("/usr/bin/time"), // the shell's own does not measure memory
	}
	if nbdcopy == "" {
		nbdcopy = find("nbdcopy")
	}
	switch options, err := exec.CommandContext(ctx, nbdcopy, "--long-options").Output(); {
	case nbdcopy == "":
		t.nbdcopyMissing = "nbdcopy is not installed"
	case err != nil:
		t.nbdcopyMissing = fmt.Sprintf("%s does not run: %v", nbdcopy, err)
	case !bytes.Contains(options, []byte("--blkhash")):
		t.nbdcopyMissing = "this nbdcopy has no --blkhash: set NBDCOPY to one of 1.24 or later"
	default:
		t.nbdcopy = nbdcopy
	}
	return t
}

// need returns an error if a tool was not found.
func need(name, path string) error {
	if path == "" {
		return missingTool(name + " is not installed")
	}
	return nil
}

// versions returns a line for each program that took part.
func (l *lab) versions(ctx context.Context) []string {
	var lines []string
	for _, c := range [][]string{
		{l.hashfs, "--version"}, {l.tools.openssl, "version"}, {l.tools.b3sum, "--version"},
		{l.tools.nbdcopy, "--version"}, {l.tools.plainNBDCopy, "--version"}, {l.tools.qemuNBD, "--version"}, {l.tools.nbdkit, "--version"}, {l.tools.fio, "--version"}, {l.tools.cat, "--version"},
	} {
		if c[0] == "" {
			continue
		}
		out, err := exec.CommandContext(ctx, c[0], c[1:]...).Output()
		if err != nil {
			out = fmt.Appendf(nil, "%s: %v", c[0], err)
		}
		lines = append(lines, firstLine(out))
	}
	return lines
}

// libraries returns the version of Go that hashfs was built with, and those of
// the modules that take part in what is measured.
func (l *lab) libraries() (goVersion string, modules []string, err error) {
	info, err := buildinfo.ReadFile(l.hashfs)
	if err != nil {
		return "", nil, err
	}
	for _, m := range info.Deps {
		switch m.Path {
		case "github.com/hanwen/go-fuse/v2", "github.com/zeebo/blake3", "golang.org/x/crypto":
			modules = append(modules, m.Path+" "+m.Version)
		}
	}
	return info.GoVersion, modules, nil
}

func firstLine(out []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}

// command runs a program to its end and returns what it printed. What it says
// on standard error goes into the error.
func command(ctx context.Context, argv ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return nil, commandError(argv, err, complaint.Bytes())
	}
	return out.Bytes(), nil
}

func commandError(argv []string, err error, complaint []byte) error {
	if line := firstLine(complaint); line != "" {
		err = fmt.Errorf("%w: %s", err, line)
	}
	return fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
}
