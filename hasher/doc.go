// Package hasher computes digests of disk images, keeps them right while the
// images are written, and shows each reader one moment.
//
// The checksum is blkhash, as nbdcopy --blkhash and blksum give it: the digest
// of the digests of all blocks and the size. An Image joins a Source with a
// table of what is known of its blocks; a View shows the image as it was when
// the view was opened, whatever is written since.
//
// # What callers may rely on
//
// A digest that is returned is that of the block at the view's moment. If it
// cannot be had, an error is returned. A block is read once however many
// readers need it, and not again until it changes. A reader leaves as soon as
// its context ends, also when the source hangs; the work goes on for a second
// without readers, then stops.
//
// Changes made through the Image are followed block by block. Changes made
// behind its back are found by the source's stamp, before anything is kept or
// returned: then everything is forgotten. What a stamp cannot show is not
// found: stores through a mapping of the file, file systems whose times are
// another machine's, and a direct write that is still under way when the file
// has looked at rest for two ticks of its clock.
//
// # Moments and mutations
//
// A moment (what views of one generation share) has an overlay: the digests of
// the blocks that were overwritten since. Data is never copied. One mutex an
// image guards the table, overlays, checkpoints, and the lists of reads and
// mutations under way; it is never held across I/O or hashing.
//
// A mutation
//
//  1. enters the list;
//  2. without the mutex, hashes the old blocks that a moment lacks and the
//     table does not know (capture), again until none is lacking. It does so
//     as a reader does, and so waits for the I/O of others on such a block;
//     where no moment lacks it, two may write one block at the same time,
//     since the block size must not slow down a guest;
//  3. in one critical section fills all overlays, makes its blocks unknown,
//     drops the checkpoints beyond its first block, spoils the reads that
//     overlap it, and moves the generation (begin);
//  4. does its I/O;
//  5. leaves the list, whatever the result, and moves the generation again. A
//     failed write leaves its blocks unknown.
//
// A reader looks, in one critical section, at the overlay, then at the table;
// else it waits for a mutation whose I/O is under way on the block, or joins
// or starts a job that reads it. A job publishes only the blocks on which it
// was not spoiled. A question for extents is such a read too: a hole that is
// overtaken by a write must not become zeros.
//
// A moment resumes the outer hash from a checkpoint, or leaves one, only if
// its overlay holds no block below it.
//
// # Bounds
//
// Digests and overlays live within the limit of a blockcache.Cache. One
// mutation hashes at most 64 MiB of old data for all moments; a moment that needs
// more ends, and its views are stale. 16 mutations of an image do so at a time.
//
// # How it is tested
//
// Random operations from several goroutines are compared with a plain model in
// memory, at full speed and under schedules driven by a seed. Built with the
// tag hashfs_mutants, each rule above is switched off in turn, and the test
// has to notice. See model_test.go.
package hasher
