package report

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// A Command is a subcommand of the bench. It writes its result to out, and its
// error says what failed or which expectation did.
type Command func(ctx context.Context, args []string, out io.Writer) error

// A Section of REPORT.md is what a command found out.
type Section struct {
	Title   string
	File    string // the command's JSON
	Command string // that writes the file, with its flags
	Empty   Result // that the file is read into
}

// Write returns the command that makes REPORT.md and its pictures from the
// sections' files, with a table of the algorithms.
func Write(sections []Section, algorithms []string) Command {
	return func(_ context.Context, args []string, out io.Writer) error {
		flags := flag.NewFlagSet("report", flag.ContinueOnError)
		dir := flags.String("results", defaultDir, "the `directory` of the JSON files, and for REPORT.md and the pictures")
		if err := ParseFlags(flags, args, out); err != nil {
			return err
		}
		chapters, err := readChapters(sections, *dir)
		if err != nil {
			return err
		}
		text := bytes.NewBufferString("# Results\n\nMade from the JSON files beside it by `go run ./bench report`. [What they say](../README.md).\n")
		sideBySide(text, chapters, algorithms)
		for _, c := range chapters {
			if err := c.write(text, *dir); err != nil {
				return err
			}
		}
		file := filepath.Join(*dir, "REPORT.md")
		if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
			return err
		}
		_, err = fmt.Fprintln(out, file)
		return err
	}
}

// A chapter is a section whose file has been read; result is nil if there is
// none.
type chapter struct {
	Section
	result Result
	made   Machine
}

// readChapters reads the files of all sections. The error names the file that
// is broken.
func readChapters(sections []Section, dir string) ([]chapter, error) {
	var chapters []chapter
	for _, s := range sections {
		c := chapter{Section: s}
		file := filepath.Join(dir, s.File)
		switch encoded, err := os.ReadFile(file); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			if c.made, err = decode(encoded, s.Empty); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			c.result = s.Empty
		}
		chapters = append(chapters, c)
	}
	return chapters, nil
}

// write writes the chapter, and draws its pictures in dir.
func (c chapter) write(out *bytes.Buffer, dir string) error {
	fmt.Fprintf(out, "\n## %s\n\n", c.Title)
	if c.result == nil {
		fmt.Fprintf(out, "Not run: there is no `%s`, which `go run ./bench %s` writes.\n", c.File, c.Command)
		return nil
	}
	fmt.Fprintf(out, "From [%s](%s), which `go run ./bench %s` writes. Made on %v.\n\n", c.File, c.File, c.Command, c.made)
	if err := broken(c.result); err != nil {
		fmt.Fprintf(out, "**This run failed:**\n\n```text\n%v\n```\n\n", err)
	}
	pictures, err := drawAll(dir, c.result)
	if err != nil {
		return fmt.Errorf("%s: %w", c.File, err)
	}
	for _, p := range pictures {
		fmt.Fprintf(out, "![%s: %s](%s.svg)\n\n", c.Title, p.Shows, p.Name)
	}
	page := &markdown{out: out}
	c.result.Print(page)
	page.close()
	return nil
}

// sideBySide writes a table of the algorithms that all columns have.
func sideBySide(out *bytes.Buffer, chapters []chapter, algorithms []string) {
	var columns []Column
	for _, c := range chapters {
		if of, ok := c.result.(interface{ Columns() []Column }); ok {
			columns = append(columns, of.Columns()...)
		}
	}
	if len(columns) == 0 {
		return
	}
	fmt.Fprint(out, "\n## Algorithms\n\n")
	page := &markdown{out: out}
	header := "algorithm\t"
	for _, c := range columns {
		header += c.Title + "\t"
	}
	TableOf(page, "", header, algorithms, func(name string) string {
		line := name + "\t"
		for _, c := range columns {
			cell := c.Cell(name)
			if cell == "" {
				return ""
			}
			line += cell + "\t"
		}
		return line
	}, "")
	for _, c := range columns {
		fmt.Fprintf(page, "%-16s%s\n", c.Title, c.Means)
	}
	page.close()
}
