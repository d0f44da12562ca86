package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"weir/cmd/server/servertest"
	"weir/counters/memcachedtest"
)

// Whatever is killed or reset, and whatever holders forget to release: at no moment do more
// rely on a place than there are, and nobody is denied one for longer than those who may
// hold one can.
func TestLeaseHistories(t *testing.T) {
	t.Parallel()
	binary(racing{t}) // takes none of the time
	begin := time.Now()
	for seed := *historiesFrom; seed == *historiesFrom || time.Since(begin) < *historiesFor*2/5; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := newLeaseHistory(seed)
			h.happen(t)
			t.Log(h.summary())
			if broken := h.judge(); len(broken) > 0 {
				assert.Fail(t, "a promise is broken", "%d times, first:\n%s", len(broken), broken[0])
			}
		})
	}
}

// A leaseHistory is what callers of four processes saw who share a limit of places.
type leaseHistory struct {
	*history
	seed   uint64
	limit  int64
	lease  time.Duration
	mu     sync.Mutex
	places []*place
}

// A place is one that a caller has asked for, or asked to renew.
type place struct {
	process int
	cost    int64
	span
	status  int // 0 if there was no answer
	renews  *place
	renewed *place // what it was renewed to
	release span   // zero if it was never released
	ends    int    // the status of that
	receipt string
}

func newLeaseHistory(seed uint64) *leaseHistory {
	random := rand.New(rand.NewPCG(seed, 7))
	skew := pick[time.Duration](random, 0, 20, 100, 200) * time.Millisecond
	return &leaseHistory{
		history: &history{
			name: fmt.Sprintf("seed %d (-run TestLeaseHistories -history %d)", seed, seed),
			skew: skew, timeout: time.Second, offsets: []time.Duration{0, skew, skew / 2, skew},
		},
		seed: seed, limit: pick[int64](random, 3, 8, 40), lease: time.Second,
	}
}

const callersOfEach = 64

// happen has callers of all processes take, renew, release and forget places while
// processes are killed and the client is reset. In the end all processes are killed, with
// whatever is held, and somebody asks for all places.
func (h *leaseHistory) happen(t *testing.T) {
	m := memcachedtest.Start(t)
	r := h.run(t, m.Far(time.Millisecond), fmt.Sprintf(`policies:
  places:
    on_store_error: deny
    limits: [{name: in-flight, algorithm: concurrency, limit: %d, lease: %v}]
`, h.limit, h.lease))
	end := time.Now().Add(3 * time.Second)
	var callers sync.WaitGroup
	for i := range callersOfEach * len(h.offsets) {
		random := rand.New(rand.NewPCG(h.seed, uint64(100+i)))
		callers.Go(func() {
			for time.Now().Before(end) {
				h.use(r, random, i%len(h.offsets))
			}
		})
	}
	random := rand.New(rand.NewPCG(h.seed, 8))
	for kills := 2; time.Now().Before(end); {
		time.Sleep(time.Duration(random.IntN(700)) * time.Millisecond)
		if i := random.IntN(len(h.offsets)); kills > 0 && random.IntN(2) == 0 {
			kills--
			h.note(fmt.Sprintf("process %d is killed", i))
			r.put(i, nil).kill()
			r.start(t, i)
		} else {
			r.reset(i, promisedPolicy{name: "places"}, "busy")
		}
	}
	callers.Wait()
	for i := range h.offsets {
		r.put(i, nil).kill()
		r.start(t, i)
	}
	for i := range h.offsets {
		require.Eventually(t, func() bool {
			p := h.ask(r, i, h.limit, nil)
			if p.status == http.StatusOK {
				h.giveBack(r, p, i)
			}
			return p.status == http.StatusOK
		}, servertest.Patience, 10*time.Millisecond)
	}
}

// use takes a place, and does with it what callers do.
func (h *leaseHistory) use(r *recorder, random *rand.Rand, process int) {
	p := h.ask(r, process, 1+random.Int64N(min(2, h.limit)), nil)
	if p.status != http.StatusOK {
		time.Sleep(time.Duration(random.Int64N(int64(100 * time.Millisecond))))
		return
	}
	for range pick(random, 0, 0, 0, 1, 3) {
		time.Sleep(time.Duration(random.Int64N(int64(pick(random, h.lease/20, h.lease/20, h.lease*3/4)))))
		next := h.ask(r, random.IntN(len(h.offsets)), p.cost, p)
		if unsure := next.status == 0 || next.status == http.StatusServiceUnavailable; unsure || random.IntN(4) == 0 {
			again := h.ask(r, random.IntN(len(h.offsets)), p.cost, p)
			if again.status == http.StatusOK || unsure {
				next.renewed, next = again, again
			}
		}
		if next.status != http.StatusOK {
			break
		}
		p = next
	}
	switch random.IntN(16) {
	case 0: // it forgets to
	case 1:
		time.Sleep(time.Duration(random.Int64N(int64(2 * h.lease))))
		h.giveBack(r, p, random.IntN(len(h.offsets)))
	default:
		time.Sleep(time.Duration(random.Int64N(int64(20 * time.Millisecond))))
		h.giveBack(r, p, random.IntN(len(h.offsets)))
		if p.release != (span{}) && random.IntN(4) == 0 {
			again := *p
			h.giveBack(r, &again, random.IntN(len(h.offsets)))
		}
	}
}

// ask asks for a place, or for one to be renewed.
func (h *leaseHistory) ask(r *recorder, process int, cost int64, renews *place) *place {
	path, body := "/v1/check", fmt.Sprintf(`{"policy":"places","client":"busy","cost":%d,"settle":true}`, cost)
	if renews != nil {
		path, body = "/v1/renew", fmt.Sprintf(`{"receipt":%q}`, renews.receipt)
	}
	p := &place{process: process, cost: cost, renews: renews, span: span{call: h.now()}}
	status, data, asked := r.send(process, http.MethodPost, path, "application/json", body)
	p.back, p.status = h.now(), status
	if !asked {
		return p
	}
	var answer struct{ Receipt string }
	if json.Unmarshal(data, &answer) == nil {
		p.receipt = answer.Receipt
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.places = append(h.places, p)
	if renews != nil && status == http.StatusOK && renews.renewed == nil {
		renews.renewed = p
	}
	return p
}

func (h *leaseHistory) giveBack(r *recorder, p *place, process int) {
	release := span{call: h.now()}
	status, _, asked := r.send(process, http.MethodPost, "/v1/settle", "application/json", fmt.Sprintf(`{"receipt":%q}`, p.receipt))
	if release.back = h.now(); asked {
		p.release, p.ends = release, status
	}
}

// reliedOn returns the time in which the caller of p relies on it: from its answer until
// it releases it, renews it, or its lease may have ended. What a reset may have forgotten
// nobody relies on.
func (h *leaseHistory) reliedOn(p *place) span {
	s := span{p.back, p.call + h.lease}
	if p.status != http.StatusOK {
		return span{}
	}
	if p.release != (span{}) {
		s.back = min(s.back, p.release.call)
	}
	if p.renewed != nil {
		s.back = min(s.back, p.renewed.back)
	}
	for _, reset := range h.resets {
		if p.call < h.resetUntil(reset) {
			s.back = min(s.back, reset.call)
		}
	}
	return s
}

// longestReset is how long it takes until a process asks a server again that didn't answer,
// and tells it of a reset.
const longestReset = 3 * time.Second

// resetUntil returns until when a reset may have been done.
func (h *leaseHistory) resetUntil(r reset) time.Duration {
	if r.status == http.StatusNoContent {
		return r.back
	}
	return r.back + h.late() + longestReset
}

// takenUp returns the time in which p may take up its cost: from when it was asked for
// until it was surely released or renewed, or its lease has ended by any clock.
func (h *leaseHistory) takenUp(p *place) span {
	s := span{p.call, p.back + h.lease + h.lease/16 + 2*h.skew}
	switch {
	case p.status == http.StatusTooManyRequests || p.status == http.StatusConflict || p.status == http.StatusGone:
		return span{}
	case p.status != http.StatusOK: // it may be counted later still
		s.back += h.timeout
	case p.renewed != nil:
		s.back = min(s.back, p.renewed.back)
	case p.ends == http.StatusOK && p.release.back-p.release.call < h.timeout/2: // else it may come later
		s.back = min(s.back, p.release.back)
	}
	return s
}

// judge returns what is wrong.
func (h *leaseHistory) judge() (broken []string) {
	type use struct {
		*place
		span
	}
	var relied, taken []use
	for _, p := range h.places {
		if s := h.reliedOn(p); s.call < s.back {
			relied = append(relied, use{p, s})
		}
		if s := h.takenUp(p); s != (span{}) {
			taken = append(taken, use{p, s})
		}
	}
	violate := func(around span, format string, args ...any) {
		broken = append(broken, fmt.Sprintf(format, args...)+"\n"+h.timelineOf(around))
	}
	for _, at := range relied {
		var sum int64
		for _, u := range relied {
			if u.span.call <= at.span.call && at.span.call < u.span.back {
				sum += u.cost
			}
		}
		if sum > h.limit {
			violate(at.span, "%d of %d places are relied on at %v", sum, h.limit, at.span.call)
		}
	}
	for _, p := range h.places {
		switch p.status {
		case 0, http.StatusOK, http.StatusServiceUnavailable:
			continue
		case http.StatusTooManyRequests, http.StatusConflict:
		default:
			violate(p.span, "%v is no documented answer", p)
		}
		// However long it took: what an instance didn't hear from the store it doesn't say.
		if p.renews != nil && p.back < p.renews.call+h.lease && !slices.ContainsFunc(h.resets, func(r reset) bool {
			return r.call < p.back && p.renews.call < h.resetUntil(r)
		}) {
			violate(p.span, "%v, though its lease hasn't ended", p)
		}
		if p.back-p.call >= h.timeout/2 { // others may have been faster until its time was over
			continue
		}
		// It may be decided by what another check of its process had asked before it.
		around, sum := span{p.call - h.timeout/4, p.back}, p.cost
		for _, u := range taken {
			if u.place != p.renews && u.span.overlaps(around) {
				sum += u.cost
			}
		}
		if sum <= h.limit {
			violate(p.span, "%v, though no more than %d of %d can be taken up with it", p, sum, h.limit)
		}
	}
	return broken
}

func (p *place) String() string {
	what := "asks for"
	if p.renews != nil {
		what = "renews"
	}
	s := fmt.Sprintf("%v to %v, process %d %s %d: %d", p.call, p.back, p.process, what, p.cost, p.status)
	if p.release != (span{}) {
		s += fmt.Sprintf(", released %v to %v: %d", p.release.call, p.release.back, p.ends)
	}
	return s
}

// timelineOf returns what happened around a span.
func (h *leaseHistory) timelineOf(s span) string {
	s.call -= h.lease + 2*h.skew
	lines := []string{fmt.Sprintf("%s: clocks %v, -clock-skew %v, %d places for %v", h.name, h.offsets, h.skew, h.limit, h.lease)}
	for _, f := range h.faults {
		lines = append(lines, fmt.Sprintf("%v %s", f.at, f.what))
	}
	for _, r := range h.resets {
		lines = append(lines, fmt.Sprintf("%v to %v, reset: %d", r.call, r.back, r.status))
	}
	for _, p := range h.places {
		if p.status != http.StatusTooManyRequests && h.takenUp(p).overlaps(s) {
			lines = append(lines, p.String())
		}
	}
	return strings.Join(lines, "\n")
}

func (h *leaseHistory) summary() string {
	outcomes := make(map[string]int)
	for _, p := range h.places {
		what := "asked"
		if p.renews != nil {
			what = "renewed"
		}
		outcomes[fmt.Sprintf("%s %d", what, p.status)]++
	}
	return fmt.Sprintf("%d places, clocks within %v: %v, %d resets, %d kills", h.limit, h.skew, outcomes, len(h.resets), len(h.faults))
}

// Two places for 10s, with clocks up to 100ms apart, and -store-timeout 1s.
func TestJudgeOfLeases(t *testing.T) {
	t.Parallel()
	got := func(call, back int) *place { return &place{cost: 1, span: at(call, back), status: http.StatusOK} }
	released := func(p *place, call, back int) *place {
		p.release, p.ends = at(call, back), http.StatusOK
		return p
	}
	denied := func(call, back int) *place {
		return &place{cost: 1, span: at(call, back), status: http.StatusTooManyRequests}
	}
	renews := func(of *place, call, back, status int) *place {
		p := &place{cost: 1, span: at(call, back), status: status, renews: of}
		if status == http.StatusOK {
			of.renewed = p
		}
		return p
	}
	one := got(0, 10)
	kept := renews(one, 5000, 5010, http.StatusOK)
	lost := got(0, 10)
	for _, test := range []struct {
		name   string
		places []*place
		resets []reset
		broken string
	}{
		{"as many as there are", []*place{got(0, 10), got(0, 20), denied(100, 110)}, nil, ""},
		{"one too many", []*place{got(0, 10), got(0, 20), got(5000, 5010)}, nil, "3 of 2 places are relied on at 5.01s"},
		{"after a release", []*place{got(0, 10), released(got(0, 20), 4000, 4100), got(3990, 4010)}, nil, ""},
		{"when a lease has ended", []*place{got(0, 10), got(0, 20), got(9999, 10001)}, nil, ""},
		{"after a renewal", []*place{one, kept, got(0, 20), got(10_500, 10_510), got(10_500, 10_520)}, nil, "3 of 2"},
		{"after a reset", []*place{got(0, 10), got(0, 20), got(5000, 5010)}, []reset{{span: at(4000, 4500), status: http.StatusNoContent}}, ""},
		{"denied though one is free", []*place{got(0, 10), denied(100, 110)}, nil, "no more than 2 of 2 can be taken up with it"},
		{"denied while another clock keeps a lease", []*place{got(0, 10), got(0, 20), denied(10_800, 10_810)}, nil, ""},
		{"denied when no clock does", []*place{got(0, 10), got(0, 20), denied(11_200, 11_210)}, nil, "no more than 1 of 2"},
		{"denied long after a release", []*place{got(0, 10), released(got(0, 20), 1000, 1010), denied(2000, 2010)}, nil, "no more than 2 of 2"},
		{"denied while somebody may have got one", []*place{got(0, 10), {cost: 1, span: at(50, 60)}, denied(100, 110)}, nil, ""},
		{"slowly denied", []*place{denied(100, 700)}, nil, ""},
		{"not renewed in its time", []*place{lost, got(0, 20), got(0, 30), renews(lost, 5000, 5010, http.StatusConflict)}, nil, "though its lease hasn't ended"},
		{"slowly not renewed in its time", []*place{lost, got(0, 20), got(0, 30), renews(lost, 5000, 5700, http.StatusConflict)}, nil, "though its lease hasn't ended"},
		{"an undocumented answer", []*place{{cost: 1, status: http.StatusInternalServerError}}, nil, "no documented answer"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := &leaseHistory{history: &history{skew: 100 * time.Millisecond, timeout: time.Second, resets: test.resets}, limit: 2, lease: 10 * time.Second, places: test.places}
			broken := strings.Join(h.judge(), "\n")
			if test.broken == "" {
				require.Empty(t, broken)
			}
			require.Contains(t, broken, test.broken)
		})
	}
}
