package main

import (
	"context"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"weir/api/envoy"
	"weir/api/policyfile"
)

// reloadUntil loads the policies again when their file changes, and on each
// hangup, and reads the other files again when they change, until ctx ends.
func (p *program) reloadUntil(ctx context.Context, hangup <-chan os.Signal) {
	ticks := time.Tick(reloadInterval)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangup:
			p.reload()
			p.readFiles()
		case <-ticks:
			p.readFiles()
			content, err := readPolicies(p.cfg)
			switch known := p.read.data != nil; {
			case err != nil && known:
				p.read = policyContent{} // what is readable again is loaded
				p.reloaded(false)
				p.log.Warn("the policy file can't be read; the policies stay as they were until it can", slog.Any("error", err))
			case err == nil && !(known && content.equals(p.read)):
				p.reload()
			}
		}
	}
}

// reloaded counts that files were read again, and judges all of them.
func (p *program) reloaded(ok bool) {
	p.metrics.Reloaded(ok)
	p.metrics.FilesRight(p.read.equals(p.inForce) && !slices.ContainsFunc(p.files, func(w *watchedFiles) bool { return w.wrong }))
}

// readFiles puts in force what has changed of the files beside those of the policies,
// if it is right.
func (p *program) readFiles() {
	for _, w := range p.files {
		changed, err := w.look()
		if !changed {
			continue
		}
		p.reloaded(err == nil)
		if err != nil {
			logMistakes(p.log, "a file that has changed is wrong; what was read before stays in force", err)
		} else {
			p.log.Info("a file is read again, as it has changed", slog.String("flags", w.String()))
		}
	}
}

// reload replaces all policies, or none if the file has a mistake. Each mistake
// is a line of its own in the log.
func (p *program) reload() {
	before := p.inForce
	loaded, err := p.loadPolicies()
	p.reloaded(err == nil)
	if err != nil {
		logMistakes(p.log, "the policies stay as they were", err)
		return
	}
	p.metrics.Loaded(time.Now())
	p.server.SetPolicies(loaded.policies)
	p.setEnvoy(loaded)
	p.log.LogAttrs(context.Background(), slog.LevelInfo, "policies loaded",
		append(loaded.words(), changes(p.cfg, before, p.inForce)...)...)
}

// changes names the policies that differ between two contents, both right. Where
// there are many it says how many more.
func changes(cfg *config, before, after policyContent) []slog.Attr {
	// Parsed again: policies in use have limiters, which differ where nothing has changed.
	was, _ := policyfile.Parse(cfg.policyFile, before.data)
	is, _ := policyfile.Parse(cfg.policyFile, after.data)
	var added, changed, removed []string
	for name, p := range is {
		if was[name] == nil {
			added = append(added, name)
		} else if !reflect.DeepEqual(p, was[name]) {
			changed = append(changed, name)
		}
	}
	for name := range was {
		if is[name] == nil {
			removed = append(removed, name)
		}
	}
	if !sameFiles(before.envoy, after.envoy) {
		changed = append(changed, envoy.PolicyName)
	}
	var attributes []slog.Attr
	for _, change := range []struct {
		what  string
		names []string
	}{{"added", added}, {"changed", changed}, {"removed", removed}} {
		if len(change.names) > 0 {
			attributes = append(attributes, slog.String(change.what, someOf(change.names)))
		}
	}
	return attributes
}

// logMistakes logs an error that may name several mistakes, one line each.
func logMistakes(log *slog.Logger, message string, err error) {
	for mistake := range strings.SplitSeq(err.Error(), "\n") {
		log.Error(message, slog.String("error", mistake))
	}
}
