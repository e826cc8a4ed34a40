package main

import "context"

// allExperiments returns the experiments in the order of the table, which is
// also that in which they are made. Those that write to a file come after those
// that read it, and what empties the page cache comes last: a file that is read
// back lies there in folios of other sizes than when it was written.
func allExperiments() []*experiment {
	return []*experiment{
		blocksExperiment(2, atMost(0.62)),
		blocksExperiment(16, target{}),
		opensslExperiment(),
		nbdcopyExperiment(),
		blake3Experiment(smallPieces, "128 KiB"),
		blake3Experiment(largePieces, "4 MiB"),
		zerosExperiment(),
		holeExperiment(),
		bracketExperiment(),
		workersExperiment(),
		memoryExperiment(),
		exportExperiment("qemu-nbd", func(l *lab, ctx context.Context, path string) (*nbdServer, error) {
			return l.qemuServer(ctx, "raw", path)
		}),
		exportExperiment("nbdkit", (*lab).nbdkitServer),
		exportedHoleExperiment(),
		qcow2Experiment(),
		callExperiment(),
		freshChecksumExperiment(),
		freshDigestsExperiment(),
		againExperiment(),
		readsExperiment(),
		writableReadsExperiment(),
		writesExperiment(1, false),
		writesExperiment(1, true),
		writesExperiment(4, true),
		coldExperiment(),
	}
}
