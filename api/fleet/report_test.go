package fleet

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"weir/counters/topk"
)

func TestMergedListsAreTheirSum(t *testing.T) {
	t.Parallel()
	merged := Merge([]List{
		{Clients: []topk.Count{{Client: "a", Count: 9}, {Client: "b", Count: 5, Error: 1}}},
		{},
		{Clients: []topk.Count{{Client: "b", Count: 6}, {Client: "c", Count: 3}}, Rest: 2},
	})
	assert.Equal(t, []topk.Count{{Client: "a", Count: 11, Error: 2}, {Client: "b", Count: 11, Error: 1}, {Client: "c", Count: 3}}, merged)
	assert.Empty(t, Merge(nil))
}

// drawReport draws what an instance has counted, with names of clients that others have too.
func drawReport(t *rapid.T) Report {
	r := Report{Policies: make(map[string]Policy)}
	list := func() (l List) {
		for i, count := range rapid.SliceOfN(rapid.Int64Range(1, 1000), 0, 60).Draw(t, "counts") {
			name := fmt.Sprint("client-", i)
			if i%7 == 0 {
				name += strings.Repeat("\xff", rapid.IntRange(0, 1000).Draw(t, "length"))
			}
			l.Clients = append(l.Clients, topk.Count{Client: name, Count: count, Error: rapid.Int64Range(0, count-1).Draw(t, "error")})
		}
		l.Clients = Merge([]List{l}) // in order
		return l
	}
	for i := range rapid.IntRange(0, 70).Draw(t, "policies") {
		p := Policy{Allowed: rapid.Int64Range(0, 1e6).Draw(t, "allowed"), Denied: rapid.Int64Range(0, 1e6).Draw(t, "denied")}
		if i < 3 {
			p.MostAllowed, p.MostDenied = list(), list()
		}
		r.Policies[fmt.Sprint("policy-", i)] = p
	}
	return r
}

// Whatever instances have counted, their reports are no larger than an item may be, are
// read as they were written, and together say of every client between what and what it was
// counted.
func TestReportsFitAndSayWhatWasCounted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var reports []Report
		least, most := make(map[string]int64), make(map[string]int64) // of policy-0
		for range rapid.IntRange(1, 4).Draw(t, "instances") {
			whole := drawReport(t)
			data := whole.fit(maxBytes).encode()
			require.LessOrEqual(t, len(data), maxBytes)
			r, err := decode(data)
			require.NoError(t, err)
			require.Equal(t, data, r.encode())
			require.Equal(t, len(r.Policies) < len(whole.Policies), r.Cut)
			if _, ok := r.Policies["policy-0"]; !ok {
				continue
			}
			reports = append(reports, r)
			for _, c := range whole.Policies["policy-0"].MostDenied.Clients {
				least[c.Client] += c.Count - c.Error
				most[c.Client] += c.Count
			}
		}
		var lists []List
		var rest int64
		for _, r := range reports {
			lists = append(lists, r.Policies["policy-0"].MostDenied)
			rest += r.Policies["policy-0"].MostDenied.Rest
		}
		merged := Merge(lists)
		for _, c := range merged {
			require.GreaterOrEqual(t, c.Count, most[c.Client], c.Client)
			require.LessOrEqual(t, c.Count-c.Error, least[c.Client], c.Client)
			require.GreaterOrEqual(t, c.Error, int64(0), c.Client)
			delete(most, c.Client)
		}
		for client, count := range most {
			require.LessOrEqual(t, count, rest, "%s is in no list", client)
		}
	})
}

// One policy's clients don't keep those of the others out.
func TestListsShareTheRoom(t *testing.T) {
	t.Parallel()
	r := Report{Policies: make(map[string]Policy)}
	for i := range 5 {
		var l List
		for j := range 500 {
			l.Clients = append(l.Clients, topk.Count{Client: fmt.Sprintf("a-client-%d", j), Count: int64(math.Pow10(i)) * int64(500-j)})
		}
		r.Policies[fmt.Sprint("p", i)] = Policy{Denied: 1, MostDenied: l}
	}
	for name, p := range r.fit(maxBytes).Policies {
		n := len(p.MostDenied.Clients)
		assert.InDelta(t, 37, n, 10, name)
		assert.Equal(t, r.Policies[name].MostDenied.Clients[n].Count, p.MostDenied.Rest, name)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Report{Policies: map[string]Policy{"api": {Allowed: 3, MostDenied: List{Clients: []topk.Count{{Client: "c", Count: 300, Error: 1}}, Rest: 7}}}}.encode())
	f.Add([]byte{formatVersion, 0})
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err != nil {
			require.ErrorIs(t, err, errForeign)
			return
		}
		again, err := decode(r.encode())
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}
