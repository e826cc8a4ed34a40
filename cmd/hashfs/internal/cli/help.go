package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// usageKey is the annotation that holds the usage lines of a command: cobra
// itself knows of one only.
const usageKey = "usage"

func setUsage(c *cobra.Command, lines ...string) {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[usageKey] = "  " + strings.Join(lines, "\n  ")
}

func init() {
	cobra.AddTemplateFunc("exitStatuses", exitStatusText)
	cobra.AddTemplateFunc("usageLines", usageLines)
	cobra.AddTemplateFunc("wrap", wrap)
}

const helpTemplate = `{{.CommandPath}} - {{.Short}}

Usage:
{{usageLines .}}
{{- with .Long}}

{{wrap .}}{{end}}
{{- if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}
{{- end}}
{{- if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsagesWrapped 79 | trimTrailingWhitespaces}}
{{- end}}
{{- if .HasExample}}

Examples:
{{.Example}}
{{- end}}

Exit status:
{{exitStatuses}}
`

func usageLines(c *cobra.Command) string {
	if lines := c.Annotations[usageKey]; lines != "" {
		return lines
	}
	return "  " + c.UseLine()
}

func exitStatusText() string {
	var b strings.Builder
	for _, s := range exitStatuses {
		fmt.Fprintf(&b, "  %3d  %s\n", s.status, s.meaning)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// lineWidth is that of a terminal, less one.
const lineWidth = 79

// wrap breaks the lines of paragraphs. Lines that are indented stay.
func wrap(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, " ") || len(line) <= lineWidth {
			out.WriteString(line)
			continue
		}
		column := 0
		for i, word := range strings.Fields(line) {
			if i > 0 && column+1+len(word) > lineWidth {
				out.WriteByte('\n')
				column = 0
			} else if i > 0 {
				out.WriteByte(' ')
				column++
			}
			out.WriteString(word)
			column += len(word)
		}
		out.WriteByte('\n')
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// Manual adds to the description of each command what help says besides, as
// sections of its man page: cobra's generator has no other place for it.
func Manual(c *cobra.Command) {
	c.Long = markdown(c.Long)
	if lines := c.Annotations[usageKey]; lines != "" {
		c.Long += "\n\n# USAGE\n\n" + indent(lines)
	}
	c.Long += "\n\n# EXIT STATUS\n\n" + indent(exitStatusText())
	for _, sub := range c.Commands() {
		Manual(sub)
	}
}

// markdown makes text what Markdown shows as help does.
func markdown(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, " ") {
			b.WriteString("    " + line)
		} else {
			b.WriteString(strings.ReplaceAll(line, `\`, `\\`))
		}
	}
	return b.String()
}

// indent makes lines what Markdown leaves as it is.
func indent(lines string) string {
	return "    " + strings.ReplaceAll(lines, "\n", "\n    ")
}
