package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// A section of REPORT.md is what a command found out.
type section struct {
	title   string
	file    string // the command's JSON
	command string // that writes the file, with its flags
	decode  func(encoded []byte) (result, error)
}

func sections() []section {
	return []section{
		{"Accuracy", "accuracy.json", "accuracy", decode[accuracyReport]},
		{"Accuracy at scale", "accuracy-scale.json", "accuracy -scale", decode[scaleReport]},
		{"Architectures", "architectures.json", "architectures", decode[architecturesReport]},
		{"Throughput", "throughput.json", "throughput", decode[throughputReport]},
		{"Load", "load.json", "load", decode[loadReport]},
		{"Cost", "cost.json", "cost", decode[costReport]},
		{"Memory", "memory.json", "memory", decode[memoryReport]},
		{"Contention", "contention.json", "contention", decode[contentionReport]},
	}
}

// A result is what a JSON file holds.
type result interface {
	print(out io.Writer)
	// draw draws the result's pictures in dir, which it makes.
	draw(dir string) ([]picture, error)
}

// publish prints what a command has found out, and writes and draws it in dir.
// The error may also be that the run has broken a promise.
func publish(out io.Writer, dir, name string, r result) error {
	r.print(out)
	if _, err := r.draw(dir); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(dir, name+".json"), r); err != nil {
		return err
	}
	return brokenPromise(r)
}

// brokenPromise returns what the run promised and didn't keep, if anything.
func brokenPromise(r result) error {
	if promises, ok := r.(interface{ broken() error }); ok {
		return promises.broken()
	}
	return nil
}

// outFlag defines -out.
func outFlag(flags *flag.FlagSet, dir *string) {
	flags.StringVar(dir, "out", filepath.Join("bench", "results"), "the `directory` for the figures, as JSON, and the pictures")
}

// A picture is there as name.svg and as name.png.
type picture struct{ name, shows string }

// decode returns the report in a JSON file. The error says what is wrong with
// it, as are fields that a report of this version doesn't have.
func decode[R any, P interface {
	*R
	result
}](encoded []byte) (result, error) {
	d := json.NewDecoder(bytes.NewReader(encoded))
	d.DisallowUnknownFields()
	report := new(R)
	if err := d.Decode(report); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more after the report")
	}
	return P(report), nil
}

// report makes REPORT.md and its pictures from the JSON files.
func report(_ context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("report", flag.ContinueOnError)
	dir := flags.String("results", filepath.Join("bench", "results"), "the `directory` of the JSON files, and for REPORT.md and the pictures")
	if err := parseFlags(flags, args, out); err != nil {
		return err
	}
	chapters, err := readChapters(*dir)
	if err != nil {
		return err
	}
	text := bytes.NewBufferString("# Results\n\nMade from the JSON files beside it by `go run ./bench report`.\n")
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

// A chapter is a section whose file has been read; result is nil if there is
// none.
type chapter struct {
	section
	result
	made provenance
}

// A provenance is what all files have in common.
type provenance struct {
	Machine machine `json:"machine"`
	Seed    *uint64 `json:"seed"` // of those that depend on one
}

func (p provenance) String() string {
	if p.Seed == nil {
		return p.Machine.String()
	}
	return fmt.Sprintf("%v; seed %d", p.Machine, *p.Seed)
}

// readChapters reads the files of all sections. The error names the file that
// is broken.
func readChapters(dir string) ([]chapter, error) {
	var chapters []chapter
	for _, s := range sections() {
		c := chapter{section: s}
		file := filepath.Join(dir, s.file)
		switch encoded, err := os.ReadFile(file); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		default:
			if c.result, err = s.decode(encoded); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			if err := json.Unmarshal(encoded, &c.made); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			if c.made.Machine.Cores == 0 {
				return nil, fmt.Errorf("%s: it doesn't say on what machine it was made", file)
			}
		}
		chapters = append(chapters, c)
	}
	return chapters, nil
}

// write writes the chapter, and draws its pictures in dir.
func (c chapter) write(out *bytes.Buffer, dir string) error {
	fmt.Fprintf(out, "\n## %s\n\n", c.title)
	if c.result == nil {
		fmt.Fprintf(out, "Not run: there is no `%s`, which `go run ./bench %s` writes.\n", c.file, c.command)
		return nil
	}
	fmt.Fprintf(out, "From [%s](%s), which `go run ./bench %s` writes. Made on %v.\n\n", c.file, c.file, c.command, c.made)
	if err := brokenPromise(c.result); err != nil {
		fmt.Fprintf(out, "**This run failed:**\n\n```text\n%v\n```\n\n", err)
	}
	pictures, err := c.draw(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", c.file, err)
	}
	for _, p := range pictures {
		fmt.Fprintf(out, "![%s: %s](%s.svg)\n\n", c.title, p.shows, p.name)
	}
	fmt.Fprint(out, "```text\n")
	c.print(out)
	fmt.Fprint(out, "```\n")
	return nil
}
