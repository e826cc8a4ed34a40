package main

import (
	"fmt"
	"strconv"

	"golang.org/x/perf/benchmath"
)

// A row is a line of the table: what was measured, how often, and what it has
// to reach.
type row struct {
	work   string // what is done, with hashfs
	peer   string // what is done against it; "" where the value counts by itself
	target target
	unit   unit
	why    string // what explains the result, in a sentence
	limits string // what the comparison cannot show, in a sentence

	ours, theirs []float64 // in the unit
	missing      string    // why there is no result
	profile      []string  // lines of where the time goes, if the target is missed
}

// A target bounds the ratio of medians, ours by theirs, or where there is no
// peer the largest value.
type target struct {
	bound   float64 // 0: there is none
	atLeast bool    // else at most
}

func atMost(x float64) target  { return target{bound: x} }
func atLeast(x float64) target { return target{bound: x, atLeast: true} }

func (t target) String() string {
	switch {
	case t.bound == 0:
		return "-"
	case t.atLeast:
		return "≥ " + number(t.bound)
	}
	return "≤ " + number(t.bound)
}

// A unit is what samples are counted in. Seconds are shown as what suits them.
type unit string

const (
	seconds unit = "s"
	mebi    unit = "MiB"
	perSec  unit = "/s"
)

// value returns what the target bounds.
func (r *row) value() float64 {
	if r.peer == "" {
		return largest(r.ours)
	}
	return median(r.ours) / median(r.theirs)
}

// verdict returns "pass", "MISS", or "" where there is nothing to reach.
func (r *row) verdict() string {
	if r.missing != "" || r.target.bound == 0 {
		return ""
	}
	v := r.value()
	// Not the other way round, since no number is no pass.
	if r.target.atLeast && v >= r.target.bound || !r.target.atLeast && v <= r.target.bound {
		return "pass"
	}
	return "MISS"
}

// explain gives the row a profile if it misses its target.
func (r *row) explain(profile func() ([]string, error)) (err error) {
	if r.verdict() == "MISS" {
		r.profile, err = profile()
	}
	return err
}

// result is the value as the table shows it.
func (r *row) result() string {
	switch {
	case r.missing != "":
		return "not measured"
	case r.peer == "":
		return r.unit.format(r.value())
	}
	return number(r.value())
}

func summarize(samples []float64) benchmath.Summary {
	return benchmath.AssumeNothing.Summary(benchmath.NewSample(samples, &benchmath.DefaultThresholds), 0.95)
}

func median(samples []float64) float64 { return summarize(samples).Center }

func largest(samples []float64) float64 {
	var most float64
	for _, s := range samples {
		most = max(most, s)
	}
	return most
}

// spread formats the median with its confidence interval of 95 %.
func (u unit) spread(samples []float64) string {
	if len(samples) == 0 {
		return "-"
	}
	s := summarize(samples)
	return u.format(s.Center) + " " + s.PctRangeString()
}

func (u unit) format(v float64) string {
	switch {
	case u != seconds:
		return number(v) + spaced(u)
	case v >= 1:
		return number(v) + " s"
	case v >= 1e-3:
		return number(v*1e3) + " ms"
	case v >= 1e-6:
		return number(v*1e6) + " µs"
	}
	return number(v*1e9) + " ns"
}

// spaced puts a space before a unit that is a word.
func spaced(u unit) string {
	if u[0] == '/' {
		return string(u)
	}
	return " " + string(u)
}

// number formats v with three digits, and without an exponent.
func number(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	s, err := strconv.ParseFloat(fmt.Sprintf("%.3g", v), 64)
	if err != nil {
		return "?" // not of a number
	}
	return strconv.FormatFloat(s, 'f', -1, 64)
}
