package peers

import (
	"fmt"
	"strconv"
	"strings"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// compareAll objects where weir's answers differ from those of the other product, if there is
// one.
func (p *panel) compareAll(request *rls.RateLimitRequest, answers []answer) {
	last := len(answers) - 1
	if !p.products[last].other {
		return
	}
	for i, ours := range answers[:last] {
		theirs := answers[last]
		if ours.err == nil && theirs.err == nil {
			if differences := compare(p.products[i], request, ours.response, theirs.response); len(differences) > 0 {
				p.Errorf("%s: %v: %s", p.products[i].name, request, strings.Join(differences, "; "))
			}
		} else if x, y := status.Convert(ours.err).Message(), status.Convert(theirs.err).Message(); x != y {
			p.Errorf("%s: %v: %s, %s there", p.products[i].name, request, x, y)
		}
	}
}

// compare returns in what ours, of a product, differs from theirs, but for what deploy/envoy.md
// names: a ban denies what only checks, and duration_until_reset is 0 where nothing is in use.
func compare(product asked, request *rls.RateLimitRequest, ours, theirs *rls.RateLimitResponse) (differences []string) {
	ban, unused := false, false
	differ := func(what string, x, y any) {
		if x != y {
			differences = append(differences, fmt.Sprintf("%s: %v, %v there", what, x, y))
		}
	}
	for i, o := range ours.Statuses {
		t := theirs.Statuses[i]
		hits := uint64(max(1, request.GetHitsAddend()))
		if own := request.Descriptors[i].GetHitsAddend(); own != nil {
			hits = own.GetValue()
		}
		limit := o.GetCurrentLimit()
		differ("limit", limit.String(), t.GetCurrentLimit().String())
		if limit != nil && limit.RequestsPerUnit == 0 && hits == 0 && o.Code != t.Code {
			ban = true
		} else {
			differ("code", o.Code, t.Code)
		}
		differ("remaining", o.LimitRemaining, t.LimitRemaining)
		if own := o.GetDurationUntilReset(); own != nil && own.GetSeconds() == 0 && o.LimitRemaining == limit.GetRequestsPerUnit() {
			unused = true
		} else if d := own.GetSeconds() - t.GetDurationUntilReset().GetSeconds(); d < -1 || d > 1 {
			differ("reset", own.GetSeconds(), t.GetDurationUntilReset().GetSeconds())
		}
	}
	if !ban {
		differ("overall", ours.OverallCode, theirs.OverallCode)
	}
	if !ban && product.as {
		differ("headers", len(ours.ResponseHeadersToAdd), len(theirs.ResponseHeadersToAdd))
		for i := range min(len(ours.ResponseHeadersToAdd), len(theirs.ResponseHeadersToAdd)) {
			o, t := ours.ResponseHeadersToAdd[i], theirs.ResponseHeadersToAdd[i]
			differ("header", o.Key, t.Key)
			x, _ := strconv.Atoi(o.Value)
			y, _ := strconv.Atoi(t.Value)
			if i < 2 || !unused && (x-y < -1 || x-y > 1) { // the third is when it resets
				differ(o.Key, x, y)
			}
		}
		differ("metadata", written(ours.DynamicMetadata), written(theirs.DynamicMetadata))
	}
	return differences
}

// written returns m as text, in which each program has its own number of spaces, also where
// a value is such a text.
func written(m *structpb.Struct) string { return strings.Join(strings.Fields(m.String()), " ") }
