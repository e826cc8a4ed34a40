//go:build !race

package integration

// raceEnabled: the tests were built with -race, and so is the program.
const raceEnabled = false
