package hasher

// A rule is one of the rules that keep digests right while an image is
// written. The tests build the package with the tag hashfs_mutants, break one
// rule at a time, and demand that the model test sees it.
type rule int

const (
	ruleNone             rule = iota
	ruleCapture               // old blocks that a view lacks are hashed before a write
	ruleCaptureAgain          // and looked for again until none is lacking
	ruleFillOverlays          // what the table knows goes to the overlays
	ruleOneSection            // overlays are filled and blocks marked at one moment
	ruleMarkUnknown           // a write makes its blocks unknown
	ruleMarkBefore            // and does so before it writes, not after
	ruleDropCheckpoint        // a write drops the checkpoints beyond it
	ruleSpoilReads            // a write spoils the reads that it overlaps
	ruleWaitMutation          // a reader waits for writes under way on its block
	rulePublishUnspoiled      // a spoiled read publishes nothing
	ruleOverlayFirst          // a view's overlay wins over the table
	ruleExtentIsRead          // an extent query is spoiled like a read
	ruleResumeBelow           // a view resumes only from below its overlay
	rulePublishBelow          // a view leaves checkpoints only below its overlay
	ruleNewMoment             // views opened after a change do not share older ones
	ruleZeroAlone             // a punched block is zero only if nothing else wrote it
	rulePermanentFailure      // an old block that cannot be read stays so in its views
	ruleCheckStamp            // nothing is published when the source's stamp moved
	ruleSettle                // a stamp is trusted only when it is old enough
	ruleFullReads             // a read that came short is a failure
	ruleDoubt                 // what a write of unknown outcome may change is not kept
	ruleFlushForgets          // after a failed flush nothing is known
	ruleLeftIsRead            // what a look in place was left at is read
	ruleAwaitWriters          // and when the write that moved it has ended
)
