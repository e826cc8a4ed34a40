//go:build hashfs_mutants

package hasher

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// brokenEnv tells the child of TestMutants which rule to break.
const brokenEnv = "HASHFS_TEST_BROKEN_RULE"

var ruleNames = map[rule]string{
	ruleNone:    "none",
	ruleCapture: "capture", ruleCaptureAgain: "capture again",
	ruleFillOverlays: "fill overlays", ruleOneSection: "one section",
	ruleMarkUnknown: "mark unknown", ruleMarkBefore: "mark before", ruleDropCheckpoint: "drop checkpoint",
	ruleSpoilReads: "spoil reads", ruleWaitMutation: "wait for mutation",
	rulePublishUnspoiled: "publish unspoiled", ruleOverlayFirst: "overlay first",
	ruleExtentIsRead: "extent is read", ruleResumeBelow: "resume below", rulePublishBelow: "publish below",
	ruleNewMoment: "new moment", ruleZeroAlone: "zero alone", rulePermanentFailure: "permanent failure",
	ruleCheckStamp: "check stamp", ruleSettle: "settle", ruleAwaitWriters: "await writers",
	ruleFullReads: "full reads", ruleDoubt: "doubt", ruleFlushForgets: "flush forgets",
	ruleLeftIsRead: "left is read",
}

// TestMutants breaks each rule in turn, and wants the scheduled model test to
// notice. A broken rule may also hang or panic, so each has a process of its
// own.
func TestMutants(t *testing.T) {
	if r := os.Getenv(brokenEnv); r != "" {
		n, err := strconv.Atoi(r)
		if err != nil {
			t.Fatal(err)
		}
		brokenRule.Store(int64(n))
		start, limit := time.Now(), 4*time.Minute
		if rule(n) == ruleNone {
			limit = 15 * time.Second
		}
		for seed := uint64(1); time.Since(start) < limit && !t.Failed(); seed++ {
			synctest.Test(t, func(t *testing.T) {
				if err := runSchedule(configFor(seed)); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			})
		}
		return
	}
	for r, name := range ruleNames {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestMutants$", "-test.timeout=5m")
			cmd.Env = append(os.Environ(), brokenEnv+"="+strconv.Itoa(int(r)))
			out, err := cmd.CombinedOutput()
			if r == ruleNone {
				if err != nil {
					t.Errorf("no rule is broken, and yet: %s", out)
				}
				return
			}
			if err == nil {
				t.Errorf("nobody noticed that the rule is broken")
			}
			line, _, _ := strings.Cut(strings.TrimPrefix(string(out), "--- FAIL: TestMutants"), "; versions")
			t.Log(strings.TrimSpace(line[:min(len(line), 300)]))
		})
	}
}
