package main

import (
	"context"

	"weir/api/envoy/xds"
	"weir/api/policyfile"
)

// limitSets lead from the xDS server to what loads them, one after another.
type limitSets chan limitSet

// A limitSet is the limits that an xDS server has sent, on their way into force.
type limitSet struct {
	files      []policyfile.EnvoyFile
	unreadable error      // or nil
	done       chan error // has 1 place, and gets what is wrong with them
}

// send returns when a set is in force, or what is wrong with it.
func (sets limitSets) send(ctx context.Context, set []xds.Resource, unreadable error) error {
	s := limitSet{make([]policyfile.EnvoyFile, len(set)), unreadable, make(chan error, 1)}
	for i, r := range set {
		s.files[i] = policyfile.EnvoyFile{Name: "xDS resource " + r.Name, Data: []byte(r.YAML), Sent: true}
	}
	select {
	case sets <- s:
		return <-s.done
	case <-ctx.Done():
		return ctx.Err()
	}
}
