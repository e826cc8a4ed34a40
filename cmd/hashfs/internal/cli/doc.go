// Package cli is the command line of hashfs: commands, options, messages and
// exit statuses. It is thin: what an image is and does is in the packages
// below.
//
// Each command is a constructor, a struct of its options and a function that
// runs it. Errors come back to Main, which alone writes them, each in one
// line that begins with the program's name, and chooses the exit status.
//
// Help, man pages and completions all come from the commands made by NewRoot.
//
// Tested by unit tests, and by running the built program for streams and exit
// statuses; what is mounted is tested by package integration.
package cli
