package fleet

import (
	"cmp"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"

	"weir/counters/topk"
)

// A Report is what an instance has decided lately, by policies.
type Report struct {
	Policies map[string]Policy
	// Cut says that there was no room for all policies.
	Cut bool
}

// A Policy says what an instance has decided by one.
type Policy struct {
	// Allowed and Denied count the checks of the last Interval; one that was refused is denied.
	// Degraded counts those of them that the store couldn't decide.
	Allowed, Denied, Degraded int64
	// MostAllowed and MostDenied are the clients that were allowed or denied most in the last
	// minute.
	MostAllowed, MostDenied List
}

// A List has the clients that were counted most, the most first.
type List struct {
	Clients []topk.Count
	// Rest is how often a client that isn't in Clients was counted at most; 0 if there is none.
	Rest int64
}

// Merge returns the clients of all lists in the order of their counts. Of each, the Count
// is at least how often it was counted in all, and by Error too high at most: a list that
// doesn't name it may have counted it as often as its Rest.
func Merge(lists []List) []topk.Count {
	var rest int64
	for _, l := range lists {
		rest += l.Rest
	}
	sums := make(map[string]topk.Count)
	for _, l := range lists {
		for _, c := range l.Clients {
			sum, ok := sums[c.Client]
			if !ok {
				sum = topk.Count{Client: c.Client, Count: rest, Error: rest}
			}
			sum.Count += c.Count - l.Rest
			sum.Error += c.Error - l.Rest
			sums[c.Client] = sum
		}
	}
	return slices.SortedFunc(maps.Values(sums), func(a, b topk.Count) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Client, b.Client))
	})
}

// cut returns as many of the first clients of l as n, and what it leaves out as Rest.
func (l List) cut(n int) List {
	if n < len(l.Clients) {
		return List{l.Clients[:n], max(l.Rest, l.Clients[n].Count)}
	}
	return l
}

// maxHead is more bytes than the numbers of a policy take.
const maxHead = 64

// fit returns as much of r as encode writes in size bytes: first the policies that have decided
// most, in at most half of them; then clients, the first of each list, the second of each, and
// so on.
func (r Report) fit(size int) Report {
	fitting := Report{make(map[string]Policy), r.Cut}
	busy := func(name string) int64 { return r.Policies[name].Allowed + r.Policies[name].Denied }
	names := slices.SortedFunc(maps.Keys(r.Policies), func(a, b string) int {
		return cmp.Or(cmp.Compare(busy(b), busy(a)), strings.Compare(a, b))
	})
	used := maxHead
	for i, name := range names {
		if used += len(name) + maxHead; used > size/2 {
			names, fitting.Cut = names[:i], true
			break
		}
	}
	taken := make(map[string][2]int, len(names)) // how many of the denied, and of the allowed
	for rank, more := 0, true; more; rank++ {
		more = false
		for _, name := range names {
			p, n := r.Policies[name], taken[name]
			for i, l := range [2]List{p.MostDenied, p.MostAllowed} {
				if n[i] < rank || rank >= len(l.Clients) { // the list has ended, or had no room for the client before
					continue
				}
				if bytes := len(appendCount(nil, l.Clients[rank])); used+bytes <= size {
					used += bytes
					n[i]++
					more = true
				}
			}
			taken[name] = n
		}
	}
	for _, name := range names {
		p := r.Policies[name]
		p.MostDenied, p.MostAllowed = p.MostDenied.cut(taken[name][0]), p.MostAllowed.cut(taken[name][1])
		fitting.Policies[name] = p
	}
	return fitting
}

// formatVersion is the version of the format that encode writes.
const formatVersion = 1

var errForeign = errors.New("fleet: the item isn't a report")

// encode returns r as Memcached has it: numbers as varints, and each text behind its length.
func (r Report) encode() []byte {
	b := []byte{formatVersion, 0}
	if r.Cut {
		b[1] = 1
	}
	for _, name := range slices.Sorted(maps.Keys(r.Policies)) {
		p := r.Policies[name]
		b = appendText(b, name)
		for _, n := range []int64{p.Allowed, p.Denied, p.Degraded} {
			b = binary.AppendUvarint(b, uint64(n))
		}
		for _, l := range []List{p.MostAllowed, p.MostDenied} {
			b = binary.AppendUvarint(b, uint64(l.Rest))
			b = binary.AppendUvarint(b, uint64(len(l.Clients)))
			for _, c := range l.Clients {
				b = appendCount(b, c)
			}
		}
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendCount(b []byte, c topk.Count) []byte {
	b = binary.AppendUvarint(appendText(b, c.Client), uint64(c.Count))
	return binary.AppendUvarint(b, uint64(c.Error))
}

// decode returns the report that encode made data of. The error of most other data is
// errForeign.
func decode(data []byte) (Report, error) {
	if len(data) < 2 || data[0] != formatVersion || data[1] > 1 {
		return Report{}, errForeign
	}
	r := Report{make(map[string]Policy), data[1] == 1}
	d := decoder{data: data[2:]}
	for len(d.data) > 0 {
		name := d.text()
		p := Policy{Allowed: d.number(), Denied: d.number(), Degraded: d.number()}
		p.MostAllowed, p.MostDenied = d.list(), d.list()
		r.Policies[name] = p
	}
	if d.foreign {
		return Report{}, errForeign
	}
	return r, nil
}

// A decoder reads data from its beginning, until that is foreign.
type decoder struct {
	data    []byte
	foreign bool
}

// number reads one that is small enough for sums.
func (d *decoder) number() int64 {
	n, size := binary.Uvarint(d.data)
	if size <= 0 || n > 1<<48 {
		d.data, d.foreign = nil, true
		return 0
	}
	d.data = d.data[size:]
	return int64(n)
}

func (d *decoder) text() string {
	n := d.number()
	if n > int64(len(d.data)) {
		d.data, d.foreign = nil, true
		return ""
	}
	s := string(d.data[:n])
	d.data = d.data[n:]
	return s
}

func (d *decoder) list() List {
	l := List{Rest: d.number()}
	for n := d.number(); n > 0 && !d.foreign; n-- {
		l.Clients = append(l.Clients, topk.Count{Client: d.text(), Count: d.number(), Error: d.number()})
	}
	return l
}
