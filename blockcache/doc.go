// Package blockcache keeps what is known of the blocks of images: a state of
// two bits a block, and the digests of data blocks, packed.
//
// A Table describes the blocks of one image. They are grouped in runs of
// RunBlocks blocks. A run whose blocks are all alike costs one byte, so that
// a hole of any size costs next to nothing:
//
//	kinds   one byte a run: the state that all its blocks share, or mixed
//	states  32 words of 32 states of two bits, drawn on for mixed runs only
//	pages   for a run with data blocks, RunBlocks digests side by side
//
//	        block     0     1     2     3    ...  1023
//	states  run r   | 00  | 10  | 01  | 10  |    | 11  |
//	page    run r   |     | D B |     | D B |    |     |    D bytes each
//
// The digest pages of all tables of a Cache are bounded together, in bytes,
// and leave it least recently used first. When a page leaves, its data blocks
// become unknown in the same critical section, so that a state never speaks
// of a digest that is gone. Callers may thus see a data block become unknown
// at any moment, but no other change that they did not make themselves.
//
// What is counted against the limit: digest pages, and what callers reserve
// for digests that they keep elsewhere. States and kinds are not counted:
// they are a quarter of a byte a block at most.
//
// Any number of goroutines may use the tables of one Cache. One mutex a cache
// guards all of it; callers that hold a lock of their own take that first. No
// method does I/O, blocks, or calls back.
//
// The package is tested against a plain slice of states and digests under
// random operations, see model_test.go.
package blockcache
