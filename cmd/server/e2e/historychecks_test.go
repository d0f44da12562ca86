package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/api/policy"
)

// at is a span in milliseconds.
func at(call, back int) span {
	return span{time.Duration(call) * time.Millisecond, time.Duration(back) * time.Millisecond}
}

func admitted(process, call, back int, cost int64) event {
	return event{process: process, span: at(call, back), cost: cost, status: 200, allowed: true}
}

func denied(call, back int, cost int64) event {
	return event{span: at(call, back), cost: cost, status: 429}
}

// The checker sees each broken promise, and no other. Every limit is 10 in 1s.
func TestJudge(t *testing.T) {
	t.Parallel()
	fixed := promise{algorithm: "fixed_window", limit: 10, window: time.Second}
	sliding := promise{algorithm: "sliding_window", estimate: weighted, limit: 10, window: time.Second, slots: 10}
	full := sliding
	full.estimate = strict
	most := sliding
	most.estimate = capped
	token := promise{algorithm: "token_bucket", limit: 10, burst: 15, window: time.Second}
	leaky := token
	leaky.algorithm = "leaky_bucket"
	log := promise{algorithm: "sliding_log", limit: 10, window: time.Second}
	counting := log
	counting.entries = 8
	degraded := admitted(0, 20, 30, 6)
	degraded.degraded = true
	returned := denied(100, 120, 3)
	returned.returns = true
	slow := denied(100, 150, 3)
	slow.returns = true
	onError := map[bool]policy.OnStoreError{false: policy.StoreErrorLocal, true: policy.StoreErrorDeny}
	for _, test := range []struct {
		name   string
		limits []promise
		apart  int // how far the clock of process 1 is ahead
		deny   bool
		lost   []span
		events []event
		broken string
	}{
		{"strict, all at once", []promise{full}, 0, false, nil,
			[]event{admitted(0, 0, 20, 4), admitted(1, 0, 20, 4), admitted(0, 10, 20, 3)}, "admitted 11 within 20ms, not 10"},
		{"strict, within less than a window", []promise{full}, 0, false, nil,
			[]event{admitted(0, 0, 10, 6), admitted(1, 990, 999, 5)}, "admitted 11 within 999ms, not 10"},
		{"strict, perhaps a window apart", []promise{full}, 0, false, nil,
			[]event{admitted(0, 0, 10, 6), admitted(1, 990, 1000, 5)}, ""},
		{"strict, whatever the clocks", []promise{full}, 500, false, nil,
			[]event{admitted(0, 0, 10, 6), admitted(1, 990, 999, 5)}, "admitted 11 within 999ms, not 10"},
		{"strict, a long check in between", []promise{full}, 0, false, nil,
			[]event{admitted(0, 0, 1010, 6), admitted(0, 500, 510, 5), admitted(0, 1000, 1005, 5)}, ""},
		{"strict, long checks and too many", []promise{full}, 0, false, nil,
			[]event{admitted(0, 0, 1010, 1), admitted(0, 500, 510, 6), admitted(0, 1000, 1005, 5)}, "admitted 11 within 505ms"},
		{"strict, some without the store", []promise{full}, 0, false, nil,
			[]event{admitted(0, 0, 10, 6), degraded}, ""},
		{"strict, some without an answer", []promise{full}, 0, false, nil,
			[]event{admitted(0, 0, 10, 6), {span: at(20, 30), cost: 6}}, ""},
		{"strict, the store has lost some", []promise{full}, 0, false, []span{at(100, 200)},
			[]event{admitted(0, 0, 99, 10), admitted(0, 90, 110, 5), admitted(0, 150, 160, 5), admitted(0, 200, 210, 10)}, ""},
		{"strict, too many after a loss", []promise{full}, 0, false, []span{at(100, 200)},
			[]event{admitted(0, 0, 99, 10), admitted(0, 200, 210, 10), admitted(1, 205, 215, 1)}, "admitted 11 within 15ms"},
		{"log", []promise{log}, 0, false, nil,
			[]event{admitted(0, 0, 10, 6), admitted(0, 990, 999, 5)}, "admitted 11 within 999ms, not 10"},
		{"log, clocks apart", []promise{log}, 100, false, nil,
			[]event{admitted(0, 0, 10, 6), admitted(1, 890, 899, 5)}, "admitted 11 within 899ms, not 10"},
		{"log, clocks as far apart", []promise{log}, 100, false, nil,
			[]event{admitted(0, 0, 10, 6), admitted(1, 890, 900, 5)}, ""},
		{"weighted, within the slots that count in full", []promise{sliding}, 0, false, nil,
			[]event{admitted(0, 0, 10, 6), admitted(0, 890, 899, 5)}, "admitted 11 within 899ms, not 10"},
		{"weighted, estimated", []promise{sliding}, 0, false, nil,
			[]event{admitted(0, 0, 10, 10), admitted(0, 890, 900, 10)}, ""},
		{"weighted, twice the limit", []promise{sliding}, 0, false, nil,
			[]event{admitted(0, 0, 10, 7), admitted(0, 5, 905, 7), admitted(0, 990, 999, 7)}, "admitted 21 within 999ms, not 20"},
		{"capped, as many as may be", []promise{most}, 0, false, nil,
			[]event{admitted(0, 0, 10, 10), admitted(0, 890, 900, 2)}, ""},
		{"capped, one more", []promise{most}, 0, false, nil,
			[]event{admitted(0, 0, 10, 10), admitted(0, 990, 999, 3)}, "admitted 13 within 999ms, not 12"},
		{"token, more than has come", []promise{token}, 0, false, nil,
			[]event{admitted(0, 0, 10, 15), admitted(0, 400, 499, 5)}, "admitted 20 within 499ms, not 19"},
		{"token, all that has come", []promise{token}, 0, false, nil,
			[]event{admitted(0, 0, 10, 15), admitted(0, 400, 500, 5)}, ""},
		{"token, a clock ahead", []promise{token}, 100, false, nil,
			[]event{admitted(0, 0, 10, 15), admitted(1, 390, 400, 5)}, ""},
		{"leaky, more than has drained", []promise{leaky}, 100, false, nil,
			[]event{admitted(0, 0, 10, 15), admitted(1, 390, 399, 5)}, "admitted 20 within 399ms, not 19"},
		{"fixed", []promise{fixed}, 0, false, nil,
			[]event{admitted(0, 0, 10, 6), admitted(0, 900, 999, 5)}, "11 of 10 admitted in a calendar window"},
		{"fixed, perhaps the next window", []promise{fixed}, 0, false, nil,
			[]event{admitted(0, 0, 10, 6), admitted(0, 900, 1000, 5)}, ""},
		{"fixed, by the clock of the process", []promise{fixed}, 500, false, nil,
			[]event{admitted(0, 990, 999, 6), admitted(1, 1400, 1450, 5), admitted(1, 490, 499, 4), admitted(1, 500, 510, 5)},
			""},
		{"fixed, too many by the clock of the process", []promise{fixed}, 500, false, nil,
			[]event{admitted(0, 990, 999, 6), admitted(1, 490, 499, 5)}, "11 of 10 admitted in a calendar window"},
		{"the second of two limits", []promise{token, full}, 0, false, nil,
			[]event{admitted(0, 0, 10, 11)}, "sliding_window strict admitted 11"},
		{"an undocumented status", []promise{full}, 0, true, nil, []event{{status: 500, degraded: true}}, "no documented answer"},
		{"200 that denies", []promise{full}, 0, false, nil, []event{{status: 200}}, "no documented answer"},
		{"429 that allows", []promise{full}, 0, false, nil, []event{{status: 429, allowed: true}}, "no documented answer"},
		{"503", []promise{full}, 0, true, nil, []event{{status: 503, degraded: true}}, ""},
		{"503 under allow", []promise{full}, 0, false, nil, []event{{status: 503, degraded: true}}, "no documented answer"},
		{"503 while the store answers", []promise{full}, 0, true, nil, []event{{status: 503}}, "no documented answer"},
		{"a denial of all that is asked", []promise{full}, 0, false, nil,
			[]event{denied(5000, 5010, 3)}, "a cost of 3 is denied without reason"},
		{"a denial long after the rest", []promise{full}, 0, false, nil,
			[]event{admitted(0, 0, 10, 10), denied(5000, 5010, 3)}, "a cost of 3 is denied without reason"},
		{"a denial that a concurrent check may explain", []promise{full}, 0, false, nil,
			[]event{denied(5000, 5010, 3), denied(5005, 5020, 8)}, ""},
		{"a denial after as much as fits", []promise{full}, 0, false, nil,
			[]event{admitted(0, 4000, 4010, 8), denied(5000, 5010, 3)}, ""},
		{"a log denies what is one too few", []promise{log}, 0, false, nil,
			[]event{admitted(0, 4000, 4010, 7), denied(5000, 5010, 3)}, "a cost of 3 is denied without reason"},
		{"a log that counts may keep an entry", []promise{counting}, 0, false, nil,
			[]event{admitted(0, 4000, 4010, 7), denied(5000, 5010, 3)}, ""},
		{"a log that counts keeps no more", []promise{counting}, 0, false, nil,
			[]event{admitted(0, 4000, 4010, 6), denied(5000, 5010, 3)}, "a cost of 3 is denied without reason"},
		{"denied after its retry_after", []promise{log}, 0, false, nil, []event{admitted(0, 0, 10, 8), returned}, "denied after its retry_after"},
		{"cut off after its retry_after", []promise{log}, 0, false, nil, []event{slow}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := &history{
				name: test.name, start: time.Unix(1_000_000, 0), timeout: 100 * time.Millisecond, losses: test.lost,
				offsets:  []time.Duration{0, time.Duration(test.apart) * time.Millisecond},
				policies: []promisedPolicy{{limits: test.limits, onError: onError[test.deny]}},
				events:   test.events,
			}
			requireBroken(t, h, test.broken)
		})
	}
}

// requireBroken asserts that a history breaks that promise first, or none if it is "".
func requireBroken(t *testing.T, h *history, want string) {
	t.Helper()
	broken := h.judge()
	if want == "" {
		require.Empty(t, broken)
		return
	}
	require.NotEmpty(t, broken)
	assert.Contains(t, broken[0].what, want)
}

// Each limit is 10 in 5s, and -store-timeout 100ms.
func TestJudgeOfResetsAndRefunds(t *testing.T) {
	t.Parallel()
	full := promise{algorithm: "sliding_window", estimate: strict, limit: 10, window: 5 * time.Second, slots: 10}
	fixed := promise{algorithm: "fixed_window", limit: 10, window: 5 * time.Second}
	log := promise{algorithm: "sliding_log", limit: 10, window: 5 * time.Second}
	token := promise{algorithm: "token_bucket", limit: 10, burst: 15, window: 5 * time.Second}
	one := []promise{full}
	done := func(call, back int) []reset { return []reset{{span: at(call, back), status: 204}} }
	failed := func(call, back, status int) []reset { return []reset{{span: at(call, back), status: status}} }
	of := func(client string, e event) event {
		e.client = client
		return e
	}
	slow := denied(990, 1045, 3)
	degraded := event{span: at(990, 1000), cost: 8, status: 503, degraded: true}
	alone := denied(2010, 2020, 10)
	alone.degraded = true
	shared := event{span: at(2000, 2005), cost: 2, status: 200, allowed: true, degraded: true}
	smallAt := func(call int) event {
		e := denied(call, call+10, 3)
		e.degraded = true
		return e
	}
	small := smallAt(2010)
	elsewhere := shared
	elsewhere.process = 1
	const (
		never  = 0
		forced = 60_000
	)
	for _, test := range []struct {
		name        string
		limits      []promise
		countDenied bool
		faultsUntil int
		lost        []span
		resets      []reset
		events      []event
		broken      string
	}{
		{"all again after a reset", one, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 0, 999, 10), admitted(1, 1010, 1020, 10)}, ""},
		{"one too many after a reset", one, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 0, 999, 10), admitted(1, 1010, 1020, 10), admitted(0, 1020, 1030, 1)}, "admitted 11 within 20ms, not 10"},
		{"one too many before a reset", one, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 0, 999, 10), admitted(1, 990, 1000, 1)}, "admitted 11 within 1s, not 10"},
		{"a check meanwhile may be forgotten", one, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 0, 999, 10), admitted(1, 1005, 1015, 3), admitted(1, 1010, 1020, 10)}, ""},
		{"a fixed window, one too many after a reset", []promise{fixed}, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 0, 999, 10), admitted(1, 1010, 1020, 11)}, "11 of 10 admitted in a calendar window"},
		{"a log, all again after a reset", []promise{log}, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 0, 999, 10), admitted(1, 1010, 1020, 10)}, ""},
		{"a reset of another client", one, false, never, nil, done(1000, 1010),
			[]event{of("b", admitted(0, 0, 999, 10)), of("b", admitted(1, 1010, 1020, 10))}, "admitted 20"},
		{"a reset that failed may be done later", one, false, never, nil, failed(1000, 1010, 503),
			[]event{admitted(0, 0, 999, 10), admitted(1, 1010, 1020, 5), admitted(1, 1710, 1720, 10)}, ""},
		{"a reset that was accepted is done later still", []promise{token}, false, never, nil, append(failed(1000, 1010, 202), done(4000, 4010)...),
			[]event{admitted(0, 0, 999, 15), admitted(1, 1010, 1020, 5), admitted(1, 3900, 3910, 10), admitted(1, 4800, 4810, 15)}, ""},
		{"one too many after it", []promise{token}, false, never, nil, append(failed(1000, 1010, 202), done(4000, 4010)...),
			[]event{admitted(0, 0, 999, 15), admitted(1, 4800, 4810, 16)}, "admitted 16"},
		{"a reset that another process has accepted", []promise{token}, false, never, nil,
			[]reset{{span: at(1000, 1010), status: 202}, {process: 1, span: at(4000, 4010), status: 204}},
			[]event{admitted(0, 0, 999, 15), admitted(1, 4800, 4810, 16), admitted(1, 9000, 9010, 15)}, ""},
		{"a reset without an answer, one too many after it", one, false, never, nil, failed(1000, 1010, 0),
			[]event{admitted(0, 0, 999, 10), admitted(1, 1710, 1720, 11)}, "admitted 11"},
		{"an undocumented status", one, false, never, nil, failed(1000, 1010, 500), nil, "no documented answer"},

		{"denied at once after a reset elsewhere", one, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 0, 999, 10), denied(1900, 1910, 10)}, ""},
		{"denied a second after a reset", one, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 0, 999, 10), denied(2010, 2020, 10)}, "a cost of 10 is denied without reason"},
		{"denied a second after a reset, without the store", one, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 0, 999, 10), alone}, ""},
		{"denied without the store, nor a reason", one, false, never, nil, nil, []event{alone}, "a cost of 10 is denied without reason"},
		{"denied without the store, by who has admitted alone", one, false, never, nil, nil,
			[]event{shared, small}, ""},
		{"denied without the store, when another has admitted alone", one, false, never, nil, nil,
			[]event{elsewhere, small}, "a cost of 3 is denied without reason"},
		{"denied by who has just admitted alone", one, false, never, nil, nil,
			[]event{shared, denied(2010, 2020, 3)}, ""},
		{"denied by who has admitted alone, as the others have told by then", one, false, never, nil, nil,
			[]event{shared, denied(4010, 4020, 3)}, "a cost of 3 is denied without reason"},
		{"denied by who has admitted alone, and hasn't heard of the store until now", one, false, never, nil, nil,
			[]event{shared, smallAt(3800), denied(4010, 4020, 3)}, ""},
		{"denied by who has admitted alone, and has heard of the store since", one, false, never, nil, nil,
			[]event{shared, admitted(0, 2100, 2110, 1), smallAt(4900), denied(5010, 5020, 3)}, "a cost of 3 is denied without reason"},
		{"denied by who has admitted alone, long before its store failed", one, false, never, nil, nil,
			[]event{shared, smallAt(12000), denied(12100, 12110, 3)}, "a cost of 3 is denied without reason"},
		{"denied when another has just admitted alone", one, false, never, nil, nil,
			[]event{elsewhere, denied(2010, 2020, 3)}, "a cost of 3 is denied without reason"},
		{"a bucket, denied a second after a reset", []promise{token}, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 0, 999, 15), denied(2010, 2020, 15)}, "a cost of 15 is denied without reason"},
		{"a bucket, perhaps cut off", []promise{token}, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 0, 999, 15), denied(2010, 2060, 15)}, ""},
		{"a bucket, cut off with another check that was slow", []promise{token}, false, never, nil, done(1000, 1010),
			[]event{denied(2000, 2060, 3), denied(2040, 2060, 3)}, ""},
		{"a bucket, while another process was slow", []promise{token}, false, never, nil, done(1000, 1010),
			[]event{{process: 1, span: at(2000, 2060), cost: 3, status: 429}, denied(2040, 2060, 3)}, "a cost of 3 is denied without reason"},
		{"a bucket takes longer than a window to empty", []promise{token}, false, never, nil, nil,
			[]event{admitted(0, 0, 10, 15), denied(17000, 17010, 1)}, ""},
		{"denied a second after a reset that failed", one, false, never, nil, failed(1000, 1010, 503),
			[]event{admitted(0, 0, 999, 10), denied(2010, 2020, 10)}, ""},
		{"the store lost everything, the reset too", one, false, never, []span{at(1500, 1900)}, done(1000, 1010),
			[]event{admitted(0, 0, 999, 10), denied(2010, 2020, 10)}, ""},
		{"a check during the reset may be counted after it", one, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 0, 1001, 3), denied(2010, 2020, 8)}, ""},
		{"a check without an answer may be counted after it", one, false, never, nil, done(1000, 1010),
			[]event{{span: at(900, 950), cost: 3}, denied(2010, 2020, 8)}, ""},
		{"a check without an answer long before it", one, false, never, nil, done(1000, 1010),
			[]event{{span: at(200, 300), cost: 3}, denied(2010, 2020, 8)}, "a cost of 8 is denied without reason"},

		{"what was denied is given back", one, false, never, nil, nil,
			[]event{admitted(0, 0, 10, 8), denied(1000, 1010, 3), denied(1010, 1020, 2)}, "a cost of 2 is denied without reason"},
		{"what was denied counts", one, true, never, nil, nil,
			[]event{admitted(0, 0, 10, 8), denied(1000, 1010, 3), denied(1010, 1020, 2)}, ""},
		{"what was denied while things went wrong", one, false, forced, nil, nil,
			[]event{admitted(0, 0, 10, 8), denied(1000, 1010, 3), denied(1010, 1020, 2)}, ""},
		{"a slow denial may be given back later", one, false, never, nil, nil,
			[]event{admitted(0, 0, 10, 8), slow, denied(1095, 1105, 2)}, ""},
		{"a denial while another check is slow may be given back later", one, false, never, nil, nil,
			[]event{admitted(0, 0, 10, 8), of("b", admitted(0, 900, 1000, 1)), denied(1000, 1010, 3), denied(1010, 1020, 2)}, ""},
		{"a bucket with clocks apart gives back less", []promise{fixed, token}, false, never, nil, nil,
			[]event{admitted(0, 0, 10, 8), denied(1000, 1010, 3), denied(1010, 1020, 2)}, ""},
		{"a refund may take a reset for a later one", one, false, never, nil, done(500, 510),
			[]event{admitted(0, 520, 530, 8), denied(1000, 1010, 3), denied(1010, 1020, 2)}, ""},
		{"another may have seen it before it was given back", one, false, never, nil, nil,
			[]event{admitted(0, 0, 10, 7), denied(1000, 1010, 4), admitted(0, 1005, 1015, 1), denied(1500, 1510, 2)}, ""},
		{"a killed process may have counted it", one, false, never, nil, nil,
			[]event{{span: at(0, 10), cost: 8}, denied(1000, 1010, 3)}, ""},

		{"a refund during a reset may take from what comes after it", one, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 850, 900, 8), denied(990, 1030, 3), admitted(1, 1010, 1025, 3), admitted(0, 1030, 1040, 10)}, ""},
		{"a refund before a reset takes from nothing after it", one, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 850, 900, 8), denied(980, 1000, 3), admitted(1, 1010, 1020, 3), admitted(0, 1020, 1040, 10)}, "admitted 13"},
		{"a refund that may have come late", one, false, never, nil, done(1000, 1010),
			[]event{admitted(0, 850, 900, 8), degraded, admitted(1, 1010, 1020, 3), admitted(0, 1600, 1610, 10)}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := &history{
				start: time.Unix(1_000_000, 0), timeout: 100 * time.Millisecond, losses: test.lost,
				offsets: []time.Duration{0, 0}, policies: []promisedPolicy{{limits: test.limits, countDenied: test.countDenied, onError: policy.StoreErrorDeny}},
				events: test.events, resets: test.resets, calm: time.Duration(test.faultsUntil) * time.Millisecond,
			}
			requireBroken(t, h, test.broken)
		})
	}
}

func TestTimeline(t *testing.T) {
	t.Parallel()
	full := promise{algorithm: "sliding_window", estimate: strict, limit: 10, window: time.Second, slots: 10}
	h := &history{
		name: "seed 7", offsets: []time.Duration{0, 0}, policies: []promisedPolicy{{limits: []promise{full}}},
		faults: []fault{{5 * time.Millisecond, "connections are cut"}},
		events: []event{admitted(1, 7, 20, 6), admitted(0, 3, 30, 5)},
		resets: []reset{{process: 1, span: at(1, 2), status: 204}},
	}
	assert.Contains(t, h.timeline(h.judge()[0]), "seed 7")
	assert.Contains(t, h.timeline(h.judge()[0]), `
1ms to 2ms, process 1, reset: 204
3ms to 30ms, process 0, cost 5: 200
5ms connections are cut
7ms to 20ms, process 1, cost 6: 200
`)
}
