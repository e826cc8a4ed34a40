//go:build hashfs_mutants

package hasher

import "sync/atomic"

// brokenRule is the rule that the running test has switched off.
var brokenRule atomic.Int64

func broken(r rule) bool { return rule(brokenRule.Load()) == r }
