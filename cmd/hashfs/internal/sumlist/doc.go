// Package sumlist writes and reads lists of digests, in the two formats of
// sha256sum(1) and its kin:
//
//	HEX  NAME
//	TAG (NAME) = HEX
//
// A TAG is blk-DIGEST/SIZE for a digest of blocks (blkhash), and DIGEST for
// a plain one. A name with a newline, a carriage return or a backslash is
// written with those as \n, \r and \\, and the line begins with a backslash.
//
// Parse follows sha256sum in what it takes for a line: white space before it,
// a binary mark (*) before the name and digits in upper case are understood.
// The form with a single space before the name, which sha256sum takes from
// old BSD tools, is not: no tool of ours writes it.
//
// Tested by tables, by a fuzz test of write and read, and against the real
// sha256sum by the tests of the command.
package sumlist
