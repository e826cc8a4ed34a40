package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"text/template"
)

// printTable prints the table as text.
func printTable(w io.Writer, rows []*row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WORK\tAGAINST\tHASHFS\tPEER\tRESULT\tTARGET\t")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			r.work, dash(r.peer), r.Ours(), r.Theirs(), r.result(), r.target, r.verdict())
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range rows {
		if r.missing != "" {
			fmt.Fprintf(w, "%s: not measured: %s\n", r.work, r.missing)
		}
		if len(r.profile) > 0 {
			fmt.Fprintf(w, "\n%s, against %s:\n    %s\n", r.work, dash(r.peer), strings.Join(r.profile, "\n    "))
		}
	}
	return nil
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// What the template asks of a row.

func (r *row) Work() string    { return cell(r.work) }
func (r *row) Peer() string    { return cell(dash(r.peer)) }
func (r *row) Why() string     { return r.why }
func (r *row) Limits() string  { return r.limits }
func (r *row) Target() string  { return r.target.String() }
func (r *row) Result() string  { return r.result() }
func (r *row) Verdict() string { return r.verdict() }
func (r *row) Missing() string { return r.missing }
func (r *row) Profile() string { return strings.Join(r.profile, "\n") }
func (r *row) Ours() string    { return r.unit.spread(r.ours) }
func (r *row) Theirs() string  { return r.unit.spread(r.theirs) }

// Runs returns all samples, for who wants to reckon in another way.
func (r *row) Runs() string {
	s := r.unit.list(r.ours)
	if len(r.theirs) > 0 {
		s += " against " + r.unit.list(r.theirs)
	}
	return s
}

func (u unit) list(samples []float64) string {
	var words []string
	for _, s := range samples {
		words = append(words, u.format(s))
	}
	return strings.Join(words, ", ")
}

// cell makes text fit for a cell of a Markdown table.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;").Replace(s)
}

//go:embed performance.md.tmpl
var documentText string

var document = template.Must(template.New("performance.md").
	Funcs(template.FuncMap{"number": func(i int) int { return i + 1 }}).
	Parse(documentText))

// writeDocument writes the page about performance.
func writeDocument(path string, about []fact, rows []*row) error {
	var out bytes.Buffer
	err := document.Execute(&out, struct {
		Facts []fact
		Rows  []*row
	}{about, rows})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, out.Bytes(), 0o644)
}
