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
		case s := <-p.sets:
			s.done <- p.replaceSet(s)
		case <-ticks:
			p.readFiles()
			content, err := p.readPolicies()
			switch {
			case content.equals(p.lastRead):
			case err != nil:
				p.lastRead = content
				p.reloaded(false)
				p.log.Warn("the policy file can't be read; the policies stay as they were until it can", slog.Any("error", err))
			default:
				p.reload()
			}
		}
	}
}

// reloaded counts that files were read again, and judges all of them.
func (p *program) reloaded(ok bool) {
	p.metrics.Reloaded(ok)
	p.metrics.FilesRight(p.lastRead.equals(p.inForce) && !p.setWrong && !slices.ContainsFunc(p.files, func(w *watchedFiles) bool { return w.wrong }))
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
	content, err := p.readPolicies()
	p.lastRead = content
	var news []slog.Attr
	if err == nil {
		news, err = p.put(content)
	}
	p.tell(news, err)
}

// put puts all that the content says in force, or nothing. It returns what is new.
func (p *program) put(content policyContent) (news []slog.Attr, err error) {
	before := p.inForce
	loaded, err := p.load(content)
	if err != nil {
		return nil, err
	}
	p.metrics.Loaded(time.Now())
	p.server.SetPolicies(loaded.policies)
	p.setEnvoy(loaded)
	return append(loaded.words(), changes(p.cfg, before, p.inForce)...), nil
}

// tell counts and logs what is new, or each mistake.
func (p *program) tell(news []slog.Attr, err error) {
	p.reloaded(err == nil)
	if err != nil {
		logMistakes(p.log, "the policies stay as they were", err)
	} else {
		p.log.LogAttrs(context.Background(), slog.LevelInfo, "policies loaded", news...)
	}
}

// replaceSet puts a set of limits in force in the place of the last one, or nothing of it. The
// policies of the file stay.
func (p *program) replaceSet(s limitSet) error {
	var news []slog.Attr
	err := s.unreadable
	if err == nil {
		news, err = p.put(policyContent{data: p.inForce.data, envoy: s.files})
	}
	if p.setWrong = err != nil; err == nil {
		p.lastRead.envoy = s.files
		p.setLimited()
	}
	p.tell(news, err)
	return err
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
