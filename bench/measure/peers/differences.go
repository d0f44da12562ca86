package peers

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// Answers say how many requests the products answered otherwise: hand-picked ones, random
// ones by the same random files, and such by files that the user brings. All are asked of weir
// as its flags have it by default, and of weir by the variables of the other.
type Answers struct {
	HandPicked int `json:"hand_picked"`
	Requests   int `json:"requests"` // random ones
	Files      int `json:"files"`    // that the user brought
	// Known are differences that deploy/envoy.md names.
	Known map[string]int `json:"known"`
	// OlderQuotas says that files with quota_mode were left out: it meant something else
	// in that version.
	OlderQuotas bool   `json:"older_quotas"`
	Other       int    `json:"other"`
	First       string `json:"first,omitempty"` // of the others

	mu sync.Mutex
}

const (
	knownReset = "duration_until_reset is 0 where nothing is in use"
	knownBan   = "a ban denies what only checks"
	knownCase  = "others, of hand-picked requests"
)

// note counts a difference that no document names.
func (a *Answers) note(format string, args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.Other++; a.First == "" {
		a.First = fmt.Sprintf(format, args...)
	}
}

func (a *Answers) know(what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.Known[what]++
}

// compareAll notes where weir's answers differ from those of the other product, if there is
// one. Those that are documented are as the case has them.
func (a *Answers) compareAll(request *rls.RateLimitRequest, answers []answer, p *panel, documented bool) {
	last := len(answers) - 1
	if !p.products[last].other {
		return
	}
	if documented {
		a.know(knownCase)
		return
	}
	for i, ours := range answers[:last] {
		theirs := answers[last]
		if ours.err != nil || theirs.err != nil {
			if x, y := status.Convert(ours.err).Message(), status.Convert(theirs.err).Message(); x != y {
				a.note("%s: %v: %s, %s there", p.products[i].name, request, x, y)
			}
			continue
		}
		a.compare(p.products[i], request, ours.response, theirs.response)
	}
}

// compare notes in what ours, of a product, differs from theirs.
func (a *Answers) compare(product asked, request *rls.RateLimitRequest, ours, theirs *rls.RateLimitResponse) {
	known := make(map[string]bool)
	var other []string
	differ := func(what string, x, y any) {
		if x != y {
			other = append(other, fmt.Sprintf("%s: %v, %v there", what, x, y))
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
			known[knownBan] = true
		} else {
			differ("code", o.Code, t.Code)
		}
		differ("remaining", o.LimitRemaining, t.LimitRemaining)
		if own := o.GetDurationUntilReset(); own != nil && own.GetSeconds() == 0 && o.LimitRemaining == limit.GetRequestsPerUnit() {
			known[knownReset] = true
		} else if d := own.GetSeconds() - t.GetDurationUntilReset().GetSeconds(); d < -1 || d > 1 {
			differ("reset", own.GetSeconds(), t.GetDurationUntilReset().GetSeconds())
		}
	}
	if !known[knownBan] {
		differ("overall", ours.OverallCode, theirs.OverallCode)
	}
	if !known[knownBan] && product.as {
		differ("headers", len(ours.ResponseHeadersToAdd), len(theirs.ResponseHeadersToAdd))
		for i := range min(len(ours.ResponseHeadersToAdd), len(theirs.ResponseHeadersToAdd)) {
			o, t := ours.ResponseHeadersToAdd[i], theirs.ResponseHeadersToAdd[i]
			differ("header", o.Key, t.Key)
			x, _ := strconv.Atoi(o.Value)
			y, _ := strconv.Atoi(t.Value)
			if i < 2 || !known[knownReset] && (x-y < -1 || x-y > 1) { // the third is when it resets
				differ(o.Key, x, y)
			}
		}
		differ("metadata", written(ours.DynamicMetadata), written(theirs.DynamicMetadata))
	}
	for what := range known {
		a.know(what)
	}
	if len(other) > 0 {
		a.note("%s: %v: %s", product.name, request, strings.Join(other, "; "))
	}
}

// written returns m as text, in which each program has its own number of spaces, also where
// a value is such a text.
func written(m *structpb.Struct) string { return strings.Join(strings.Fields(m.String()), " ") }
