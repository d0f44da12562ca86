package report

import (
	"bytes"
	"fmt"
	"strings"
)

// A markdown is a page that text and tables are written to. Text is kept as it
// is.
type markdown struct {
	out  *bytes.Buffer
	text bytes.Buffer // since the last table
}

// Write implements io.Writer.
func (m *markdown) Write(p []byte) (int, error) { return m.text.Write(p) }

// close ends the text, if there is any.
func (m *markdown) close() {
	if text := strings.Trim(m.text.String(), "\n"); text != "" {
		if !bytes.HasSuffix(m.out.Bytes(), []byte("\n\n")) {
			fmt.Fprintln(m.out)
		}
		fmt.Fprintf(m.out, "```text\n%s\n```\n", text)
	}
	m.text.Reset()
}

func (m *markdown) table(title, header string, lines []string) {
	m.close()
	if !bytes.HasSuffix(m.out.Bytes(), []byte("\n\n")) {
		fmt.Fprintln(m.out)
	}
	if title != "" {
		fmt.Fprintf(m.out, "**%s**\n\n", title)
	}
	for i, line := range append([]string{header}, lines...) {
		cells := strings.Split(strings.TrimSuffix(strings.ReplaceAll(line, "|", "\\|"), "\t"), "\t")
		fmt.Fprintf(m.out, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			fmt.Fprintf(m.out, "|:--|%s\n", strings.Repeat("--:|", len(cells)-1))
		}
	}
}
