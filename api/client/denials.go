package client

import (
	"slices"
	"sync"
	"time"
)

const (
	// longestMemory bounds how long a denial is remembered: what ends it early
	// elsewhere, such as a reset or another policy file, is seen by then.
	longestMemory = time.Minute
	// resetTime is how long other instances of weir may still deny a client
	// that was reset.
	resetTime = time.Second

	// Bounds of what is remembered of one client.
	maxDenials      = 4
	maxDeniedCheck  = 2 << 10 // bytes
	searchedForRoom = 8
)

// denials remember what weir has denied until it might be admitted. They know
// the very checks that were denied: another cost, or other limits, may fit
// earlier or later, and then Retry-After would be a guess.
type denials struct {
	most    int // clients
	mu      sync.Mutex
	clients map[clientKey]*deniedClient
}

type clientKey struct{ policy, client string }

type deniedClient struct {
	denials []denial
	// fresh is when the last reset is known everywhere: what was asked before
	// isn't remembered.
	fresh time.Time
}

type denial struct {
	check    string // encoded
	answer   Answer
	received time.Time
	until    time.Time
}

// find returns the denial of the encoded check, as it stands at now.
func (d *denials) find(key clientKey, check []byte, now time.Time) (Answer, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.clients[key]
	if c == nil {
		return Answer{}, false
	}
	i := slices.IndexFunc(c.denials, func(known denial) bool { return known.check == string(check) })
	if i < 0 || !now.Before(c.denials[i].until) {
		return Answer{}, false
	}
	return c.denials[i].answer.after(now.Sub(c.denials[i].received)), true
}

// after returns a denial as it is after some time in which nobody has asked.
func (a Answer) after(passed time.Duration) Answer {
	a.RetryAfter = max(0, a.RetryAfter-passed)
	a.Limits = slices.Clone(a.Limits)
	for i := range a.Limits {
		l := &a.Limits[i]
		l.ResetAfter, l.RetryAfter = max(0, l.ResetAfter-passed), max(0, l.RetryAfter-passed)
	}
	return a
}

// remember keeps a denial of a check that was sent and answered at the given
// times. What isn't known to hold until RetryAfter it ignores: denials of clients
// that are blocked, which have no RetryAfter; degraded ones, which another instance
// might not repeat.
func (d *denials) remember(key clientKey, check []byte, a Answer, sent, received time.Time) {
	if a.Degraded || a.RetryAfter == 0 || len(check) > maxDeniedCheck || d.most <= 0 {
		return
	}
	// From when it was sent, as it is unknown when it was decided: asking too
	// early does less harm than too late.
	until := sent.Add(min(a.RetryAfter, longestMemory))
	if !received.Before(until) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.client(key, received)
	if sent.Before(c.fresh) {
		return
	}
	c.denials = slices.DeleteFunc(c.denials, func(known denial) bool {
		return known.check == string(check) || !received.Before(known.until)
	})
	if len(c.denials) == maxDenials {
		c.denials = slices.Delete(c.denials, 0, 1)
	}
	c.denials = append(c.denials, denial{check: string(check), answer: a.after(0), received: received, until: until})
}

// reset forgets a client that was reset at now.
func (d *denials) reset(key clientKey, now time.Time) {
	if d.most <= 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	*d.client(key, now) = deniedClient{fresh: now.Add(resetTime)}
}

// client returns what is remembered of a client. It makes room for it if there
// is none. The denials are locked.
func (d *denials) client(key clientKey, now time.Time) *deniedClient {
	if c := d.clients[key]; c != nil {
		return c
	}
	if len(d.clients) >= d.most {
		d.makeRoom(now)
	}
	c := new(deniedClient)
	d.clients[key] = c
	return c
}

// makeRoom forgets those of a few clients whose time has passed, or any one.
// The denials are locked.
func (d *denials) makeRoom(now time.Time) {
	searched := 0
	for key, c := range d.clients { // from a random place
		if !c.counts(now) {
			delete(d.clients, key)
		} else if searched++; searched == searchedForRoom {
			break
		}
	}
	for key := range d.clients {
		if len(d.clients) < d.most {
			return
		}
		delete(d.clients, key)
	}
}

// counts reports whether anything in c still does.
func (c *deniedClient) counts(now time.Time) bool {
	return now.Before(c.fresh) || slices.ContainsFunc(c.denials, func(known denial) bool { return now.Before(known.until) })
}
