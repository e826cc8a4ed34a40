// Package integration tests the real program on real mounts, with the programs
// that people use on them. It has no code but its tests.
//
// The program is built once, with -race when the tests are. Each test makes its
// images and its mount point in a directory of its own, below one that is
// removed at the end: a mount that hangs blocks whoever lists its parent, so
// that no mount point shares a parent with anything else. A test fails, beside
// what it checks itself, when
//   - the daemon logged anything that the test did not say it expects: a
//     warning, an error, a data race, a panic;
//   - a mount or a process of the program is left;
//   - anything takes longer than its hard timeout.
//
// FUSE is needed, and root for most tests, and the programs that need names.
// What is missing skips a test at home; with CI=true in the environment it
// fails it. The digests to compare with are computed here from the standard
// library's hashes by the formula, not by package hasher.
//
// Random content comes from fixed seeds. The whole takes some minutes under
// -race on two processors; -short leaves out what takes longer than seconds.
package integration
