package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"hashfs/cmd/hashfs/internal/daemon"
)

// Exit statuses.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitInterrupted = 130 // 128 + SIGINT, as shells say it
)

// exitStatuses is what help and manual say about them.
var exitStatuses = []struct {
	status  int
	meaning string
}{
	{exitOK, "success"},
	{exitFailure, "something failed, or with sum -c did not match; the messages say what"},
	{exitUsage, "the command line is wrong, and nothing was done"},
	{exitInterrupted, "interrupted by Ctrl-C"},
}

// usageError makes the exit status exitUsage.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// statusError makes the exit status, and says nothing: that was done before.
type statusError int

func (e statusError) Error() string { return "exit status " + strconv.Itoa(int(e)) }

// finish writes the error of a command, if any, and returns the exit status.
func finish(w io.Writer, err error) int {
	var status statusError
	var failure *daemon.Error
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &status):
		return int(status)
	case errors.Is(err, daemon.ErrInterrupted):
		return exitInterrupted
	}
	complain(w, "%v", err)
	switch {
	case errors.As(err, new(usageError)):
		return exitUsage
	case errors.As(err, &failure):
		return failure.Status
	}
	return exitFailure
}

// complain writes one message.
func complain(w io.Writer, format string, args ...any) {
	fmt.Fprintf(w, "hashfs: %s\n", oneLine(fmt.Sprintf(format, args...)))
}

// oneLine escapes what could break a line or drive a terminal; file names in
// messages can hold both.
func oneLine(s string) string {
	if strings.IndexFunc(s, unprintable) < 0 {
		return s
	}
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if unprintable(r) && (r != utf8.RuneError || n == 1) {
			quoted := strconv.Quote(s[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteString(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}

func unprintable(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError }

// arguments makes a check of their number that ends in a usage error. most
// is -1 for any number.
func arguments(least, most int, want string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return usagef("%s: %s; see %s --help", c.Name(), want, c.CommandPath())
		}
		return nil
	}
}
