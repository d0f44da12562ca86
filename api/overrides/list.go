package overrides

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"weir/api/policy"
)

// An Override is an exception of a policy's client, or clients, with an end.
type Override struct {
	Policy string
	Key    policy.ClientKey
	// Terms have Until; and Limits, or else they are Blocked or Exempt.
	policy.Terms
	Reason, By string
	Revision   int64 // larger than that of each change before it
}

// An override is remembered until it ends, and no less than remembered from when it was made. One
// that replaces another is remembered no less than the other would have been, up to longest.
const (
	remembered = 10 * time.Minute
	longest    = 24 * time.Hour
)

// A place is a key of a policy: it has one override at most.
type place struct {
	policy string
	key    policy.ClientKey
}

// An entry is an override, or what is remembered of one that is over.
type entry struct {
	Override
	// kept is how long it has to be remembered at least, so that nobody who knows only
	// what was there before takes that for lost, and puts it back.
	kept time.Time
}

// A list is all overrides, and those that were there lately. The zero value is empty.
type list struct {
	revision int64 // of the last change
	entries  map[place]entry
}

// clone returns a list that can be changed apart from l, without what needn't be
// remembered any more at now.
func (l list) clone(now time.Time) list {
	c := list{l.revision, make(map[place]entry, len(l.entries)+1)}
	for at, e := range l.entries {
		if e.kept.After(now) {
			c.entries[at] = e
		}
	}
	return c
}

// set puts o in force, or ends what is in force there if o is over, and returns it with
// its revision.
func (l *list) set(o Override, now time.Time) Override {
	at := place{o.Policy, o.Key}
	l.revision = max(l.revision+1, now.UnixMilli()) // later than one that the store has lost
	o.Revision = l.revision
	o.Until, o.By = time.UnixMilli(o.Until.UnixMilli()), strings.ToValidUTF8(o.By, "\ufffd") // as they are stored
	before := l.entries[at].kept
	if day := now.Add(longest); before.After(day) {
		before = day
	}
	l.entries[at] = entry{o, time.UnixMilli(latest(o.Until, before, now.Add(remembered)).UnixMilli())}
	return o
}

// merge takes over the entries of other that are later than l's, or that l doesn't have, and
// reports whether there were any. Two changes have the same revision only where Memcached has
// lost one of them; then all instances keep the same one.
func (l *list) merge(other list) (more bool) {
	l.revision = max(l.revision, other.revision)
	for at, theirs := range other.entries {
		ours, known := l.entries[at]
		if known && !theirs.after(ours) {
			continue
		}
		l.entries[at] = theirs
		more = true
	}
	return more
}

// after reports whether e is to be kept in the place of the other.
func (e entry) after(other entry) bool {
	return cmp.Or(
		cmp.Compare(e.Revision, other.Revision), e.kept.Compare(other.kept), e.Until.Compare(other.Until),
		strings.Compare(fmt.Sprint(e.Terms, e.Reason, e.By), fmt.Sprint(other.Terms, other.Reason, other.By)),
	) > 0
}

// inForce returns the overrides that aren't over at now, in the order of their policies
// and keys.
func (l list) inForce(now time.Time) []Override {
	var all []Override
	for _, e := range l.entries {
		if e.Until.After(now) {
			all = append(all, e.Override)
		}
	}
	slices.SortFunc(all, func(a, b Override) int {
		if a.Policy != b.Policy {
			return strings.Compare(a.Policy, b.Policy)
		}
		return strings.Compare(a.Key.String(), b.Key.String())
	})
	return all
}

// A listJSON is a list as Memcached has it.
type listJSON struct {
	Version  int         `json:"version"`
	Revision int64       `json:"revision"`
	Entries  []entryJSON `json:"overrides"`
}

// An entryJSON is an entry. Times are in milliseconds since 1970. The end of one that was
// removed is 0.
type entryJSON struct {
	Policy   string           `json:"policy"`
	Client   string           `json:"client"`
	Until    int64            `json:"until"`
	Kept     int64            `json:"kept"`
	Revision int64            `json:"revision"`
	Blocked  bool             `json:"blocked,omitempty"`
	Exempt   bool             `json:"exempt,omitempty"`
	Limits   map[string]int64 `json:"limits,omitempty"`
	Reason   string           `json:"reason,omitempty"`
	By       string           `json:"by,omitempty"`
}

// formatVersion is the version of listJSON.
const formatVersion = 1

var errForeign = errors.New("overrides: the item isn't a list of overrides")

// encode returns l as Memcached has it.
func (l list) encode() []byte {
	j := listJSON{Version: formatVersion, Revision: l.revision}
	for _, at := range slices.SortedFunc(maps.Keys(l.entries), func(a, b place) int {
		return int(l.entries[a].Revision - l.entries[b].Revision)
	}) {
		e := l.entries[at]
		j.Entries = append(j.Entries, entryJSON{
			Policy: e.Policy, Client: e.Key.String(), Until: e.Until.UnixMilli(), Kept: e.kept.UnixMilli(), Revision: e.Revision,
			Blocked: e.Blocked, Exempt: e.Exempt, Limits: e.Limits, Reason: e.Reason, By: e.By,
		})
	}
	data, _ := json.Marshal(j) // can't fail for these types
	return data
}

// decode returns the list that encode made data of, without keys that it doesn't know. The
// error of any other data is errForeign.
func decode(data []byte) (list, error) {
	l := list{entries: make(map[place]entry)}
	var j listJSON
	if err := json.Unmarshal(data, &j); err != nil || j.Version != formatVersion {
		return l, errForeign
	}
	l.revision = j.Revision
	for _, e := range j.Entries {
		key, err := policy.ParseClientKey(e.Client)
		if err != nil { // a later version's, perhaps
			continue
		}
		l.entries[place{e.Policy, key}] = entry{
			Override{
				Policy: e.Policy, Key: key, Reason: e.Reason, By: e.By, Revision: e.Revision,
				Terms: policy.Terms{Blocked: e.Blocked, Exempt: e.Exempt, Limits: e.Limits, Until: time.UnixMilli(e.Until)},
			},
			time.UnixMilli(e.Kept),
		}
	}
	return l, nil
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }
