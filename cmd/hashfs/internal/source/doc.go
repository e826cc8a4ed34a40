// Package source understands the SOURCE arguments of the command line.
//
// The grammar is
//
//	[NAME=]LOCATION[,option=value...]
//
// NAME= counts only where no slash precedes the equals sign, and a comma that
// belongs to the name or the location is doubled. The options are format=,
// digest=, writable, cache=, snapshot= and chain=.
//
// Parse looks at nothing but its argument. Expand also scans directories and
// makes the names of one mount unique. Neither opens an image, and the name
// alone decides the format: content can be forged by the guest that writes
// it.
//
// Tested by a table of every message and by a fuzz test.
package source

// A Source is one parsed SOURCE argument, or one image of a directory.
type Source struct {
	Arg      string // the argument, as given
	Name     string // of the image in the mount
	Named    bool   // NAME= was given
	Location string // a path, or "-"; doubled commas undone
	Format   string // "raw", "nbd" for a URI, or one of nbdsrc.KnownFormat
	Digest   string // DIGEST[/SIZE], known to be valid; "" when not given
	Writable bool
	Cache    string // "keep", "none", or "" when not given
	Snapshot string // of a qcow2; "" is the image itself

	// TrustChain: chain=trust was given.
	TrustChain bool

	// RawGiven: format=raw was given, so that the suffix has no say, and
	// what the content looks like is known.
	RawGiven    bool
	formatGiven bool
}
