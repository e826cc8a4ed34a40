package main

import (
	"bytes"
	"context"
	"fmt"
)

// sum returns the command line of hashfs sum.
func (l *lab) sum(args ...string) []string { return append([]string{l.hashfs, "sum"}, args...) }

func opensslExperiment() *experiment {
	return &experiment{"openssl", []*row{{
		work: "hashfs sum, 4 GiB of random data", peer: "openssl dgst -sha256 FILE",
		target: atMost(0.31), unit: seconds,
		why:    "Two cores hash several blocks side by side each, openssl one stream on one core.",
		limits: "The two digests are not the same thing: what openssl makes cannot be made in parallel, by hashfs either (sums/sha256), and this shows what a digest of blocks gains by that.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		if err := need("openssl", l.tools.openssl); err != nil {
			return err
		}
		f, err := l.data.get(ctx, smallPieces)
		if err != nil {
			return err
		}
		return l.race(ctx, rows[0], warmed(f, timed(l.sum(f)...)), warmed(f, timed(l.tools.openssl, "dgst", "-sha256", f)))
	}}
}

func nbdcopyExperiment() *experiment {
	return &experiment{"nbdcopy", []*row{{
		work: "hashfs sum, 4 GiB of random data", peer: "nbdcopy --blkhash FILE null:",
		target: atMost(0.18), unit: seconds,
		why:    "Both compute the same digest, which is compared first; nbdcopy reads with several threads and hashes with one stream at a time.",
		limits: "nbdcopy is made for copying between servers, which is more than reading a file, and its way of hashing can change with its version.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		if l.tools.nbdcopy == "" {
			return missingTool(l.tools.nbdcopyMissing)
		}
		f, err := l.data.get(ctx, smallPieces)
		if err != nil {
			return err
		}
		peer := []string{l.tools.nbdcopy, "--blkhash", f, "null:"}
		if err := sameDigest(ctx, l.sum(f), peer); err != nil {
			return err
		}
		return l.race(ctx, rows[0], warmed(f, timed(l.sum(f)...)), warmed(f, timed(peer...)))
	}}
}

// sameDigest fails unless both commands print the same digest first: a race
// between different results would mean nothing.
func sameDigest(ctx context.Context, ours, theirs []string) error {
	a, err := command(ctx, ours...)
	if err != nil {
		return err
	}
	b, err := command(ctx, theirs...)
	if err != nil {
		return err
	}
	x, y := bytes.Fields(a), bytes.Fields(b)
	if len(x) == 0 || len(y) == 0 || !bytes.Equal(x[0], y[0]) {
		return fmt.Errorf("%q prints %q and %q prints %q", ours, firstLine(a), theirs, firstLine(b))
	}
	return nil
}

func blake3Experiment(k kind, pieces string) *experiment {
	return &experiment{"blake3-" + string(k), []*row{{
		work: "hashfs sum --digest blake3, 4 GiB of random data written " + pieces + " at a time", peer: "b3sum FILE",
		target: atMost(0.95), unit: seconds,
		why:    "Both map the file and hash with all cores; how large the folios are in which it was written decides what mapping costs.",
		limits: "The digests differ (blocks of 64 KiB here, one tree there), and both stand or fall with the vector instructions that they have for this processor.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		if err := need("b3sum", l.tools.b3sum); err != nil {
			return err
		}
		f, err := l.data.get(ctx, k)
		if err != nil {
			return err
		}
		return l.race(ctx, rows[0], warmed(f, timed(l.sum("--digest", "blake3", f)...)), warmed(f, timed(l.tools.b3sum, f)))
	}}
}

func zerosExperiment() *experiment {
	return &experiment{"zeros", []*row{{
		work: "hashfs sum, 4 GiB of written zeros", peer: "cat FILE >/dev/null",
		target: atMost(0.70), unit: seconds,
		why:    "A block of zeros is recognised many times faster than it could be hashed, and without a copy; what is left is the memory's pace, and hashfs has two cores for that.",
		limits: "cat is no bound on reading: it has one thread, copies the bytes, and never looks at them.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		f, err := l.data.get(ctx, zeros)
		if err != nil {
			return err
		}
		return l.race(ctx, rows[0], warmed(f, timed(l.sum(f)...)), warmed(f, timed(l.tools.cat, f)))
	}}
}

func holeExperiment() *experiment {
	return &experiment{"hole", []*row{{
		work: "hashfs sum, a hole of 1000 GiB", peer: "openssl dgst -sha256 of 524,288,000 bytes",
		target: atMost(0.85), unit: seconds,
		why:    "Nothing of a hole is read or hashed, but by the definition of the checksum the digests of its 16,384,000 blocks are, and these are 524,288,000 bytes.",
		limits: "openssl reads its bytes from a file, and hashes bytes that differ; hashfs knows that its own are all alike.",
	}, {
		work:   "the same, most memory resident",
		target: atMost(24), unit: mebi,
		why:    "Blocks that are all alike cost a byte for each 1024 of them.",
		limits: "Most of it is the program itself and Go's runtime.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		if err := need("openssl", l.tools.openssl); err != nil {
			return err
		}
		f, err := l.data.get(ctx, hole)
		if err != nil {
			return err
		}
		peer, err := l.data.get(ctx, digests)
		if err != nil {
			return err
		}
		if err := l.race(ctx, rows[0], timed(l.sum(f)...), warmed(peer, timed(l.tools.openssl, "dgst", "-sha256", peer))); err != nil {
			return err
		}
		return l.race(ctx, rows[1], l.peakMemory(l.sum(f)...), nil)
	}}
}

// bracketExperiment shows how much of the time is reading.
func bracketExperiment() *experiment {
	return &experiment{"cat", []*row{{
		work: "hashfs sum, 4 GiB of random data", peer: "cat FILE >/dev/null", unit: seconds,
		why:    "What the work costs beyond that of having one core copy the bytes out of the page cache.",
		limits: "It is a bracket and no race: cat computes nothing.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		f, err := l.data.get(ctx, smallPieces)
		if err != nil {
			return err
		}
		return l.race(ctx, rows[0], warmed(f, timed(l.sum(f)...)), warmed(f, timed(l.tools.cat, f)))
	}}
}

func workersExperiment() *experiment {
	return &experiment{"workers", []*row{{
		work: "hashfs sum --jobs 1, 4 GiB of random data", peer: "hashfs sum --jobs 2",
		target: atLeast(1.8), unit: seconds,
		why:    "Workers share nothing but a queue of jobs; what they lose is the memory's and, on processors with two threads a core, the core's that they share.",
		limits: "It is about two workers: it does not say how many more would help.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		f, err := l.data.get(ctx, smallPieces)
		if err != nil {
			return err
		}
		two := warmed(f, timed(l.sum("--jobs", "2", f)...))
		if err := l.take(ctx, rows[0], warmed(f, timed(l.sum("--jobs", "1", f)...)), two); err != nil {
			return err
		}
		return l.explain(ctx, rows[0], two) // what two share is seen where both are
	}}
}

func memoryExperiment() *experiment {
	return &experiment{"memory", []*row{{
		work:   "hashfs sum, 4 GiB of random data, most memory resident",
		target: atMost(32), unit: mebi,
		why:    "Each worker has one buffer, or maps 4 MiB, and of the digests only a few MiB are kept.",
		limits: "The page cache, which the file fills whoever reads it, is not counted.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		f, err := l.data.get(ctx, smallPieces)
		if err != nil {
			return err
		}
		return l.race(ctx, rows[0], warmed(f, l.peakMemory(l.sum(f)...)), nil)
	}}
}

func coldExperiment() *experiment {
	return &experiment{"cold", []*row{{
		work: "hashfs sum, 4 GiB that are not in the page cache", peer: "fio, the same file, sequential O_DIRECT reads of 256 KiB, 16 at a time",
		target: atMost(1.10), unit: seconds,
		why:    "Several reads are under way while others are hashed, and go to memory that a disk is told of in few pieces.",
		limits: "Of fio it is its own time of reading, without its start; a virtual disk may be served from memory of its host, and is then faster than any disk.",
	}}, func(ctx context.Context, l *lab, rows []*row) error {
		f, err := l.data.get(ctx, largePieces)
		if err != nil {
			return err
		}
		cold := func(run measurement) measurement {
			return func(ctx context.Context) (float64, error) {
				// Little data is for trying things out: others keep their caches.
				if err := chill(f, !l.quick); err != nil {
					return 0, err
				}
				return run(ctx)
			}
		}
		return l.race(ctx, rows[0], cold(timed(l.sum(f)...)), cold(func(ctx context.Context) (float64, error) {
			r, err := l.fio(ctx, f, "--rw=read", "--direct=1", "--bs=256k", "--ioengine=libaio", "--iodepth=16")
			return r.seconds(), err
		}))
	}}
}
