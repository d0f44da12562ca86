package client

import (
	"encoding/json"
	"math"
	"net/http"
	"time"
)

// A reply is what weir answers to a check: an answer or a problem.
type reply struct {
	Answer
	policy     string // of the answer
	settlement Settlement
	problem    Problem // its status is the reply's, whatever that is
}

// answer returns the answer, or the problem as an error.
func (r *reply) answer() (Answer, error) {
	if status := r.problem.Status; status != http.StatusOK && status != http.StatusTooManyRequests {
		p := r.problem
		return Answer{}, &p
	}
	return r.Answer, nil
}

// decode decodes a reply to a batch, or to one check. It puts the results of a batch into
// those given, and returns how many there are, and the answer to all of them, if they are
// decided as one.
func decode(body []byte, into []*reply) (r reply, results int, err error) {
	if r, results, ok := scan(body, into); ok {
		return r, results, nil
	}
	return decodeAny(body, into)
}

// scan decodes what is written as weir writes it, and has no more results than are given.
func scan(body []byte, into []*reply) (r reply, results int, ok bool) {
	s := scanner{all: body, room: min(len(into), maxShared)}
	s.reply(&r, into, &results)
	return r, results, s.ended()
}

// maxShared is how many answers share the memory of their limits: who keeps one of them
// keeps it all.
const maxShared = 32

// reply reads a reply, whose members come in the order in which weir writes them. Only that
// to a batch may have results.
func (s *scanner) reply(r *reply, into []*reply, results *int) {
	s.expect('{')
	problem := s.member(`,"type":`)
	if problem {
		r.problem.Type = s.string()
		s.expectText(`,"title":`)
		r.problem.Title = s.string()
	}
	if s.member(`,"status":`) {
		r.problem.Status = int(s.integer())
	}
	if problem && s.member(`,"detail":`) {
		r.problem.Detail = string(s.text())
	}
	if s.member(`,"allowed":`) {
		r.Allowed = s.boolean()
	}
	if s.member(`,"policy":`) {
		r.policy = s.string()
	}
	if s.member(`,"client":`) {
		s.text()
	}
	if s.member(`,"retry_after":`) {
		r.RetryAfter = s.seconds()
	}
	if s.member(`,"wait":`) {
		r.Wait = s.seconds()
	}
	if s.member(`,"degraded":`) {
		r.Degraded = s.boolean()
	}
	if problem && s.member(`,"violated-policies":`) {
		s.array(func() { s.text() })
	}
	if s.member(`,"shadow":`) {
		r.Shadow = s.boolean()
	}
	if s.member(`,"receipt":`) {
		r.Receipt.Text = string(s.text())
		s.expectText(`,"settle_within":`)
		r.Receipt.within = s.seconds()
		if s.member(`,"renew_within":`) {
			r.Receipt.RenewWithin = s.seconds()
		}
	}
	if s.member(`,"limits":`) {
		r.Limits = s.readLimits()
	}
	if into != nil && s.member(`,"results":`) {
		s.array(func() {
			if *results == len(into) {
				s.fail()
				return
			}
			one := into[*results]
			*one = reply{}
			s.reply(one, nil, nil)
			*results++
		})
	}
	s.expect('}')
}

// readLimits reads the limits of an answer.
func (s *scanner) readLimits() []Limit {
	if len(s.limits) == cap(s.limits) {
		s.limits = make([]Limit, 0, s.room)
	}
	first := len(s.limits)
	s.array(func() { s.limits = append(s.limits, s.limit()) })
	if last := len(s.limits); last > first {
		return s.limits[first:last:last]
	}
	return nil
}

func (s *scanner) limit() (l Limit) {
	s.expectText(`{"name":`)
	l.Name = s.string()
	s.expectText(`,"algorithm":`)
	l.Algorithm = s.string()
	s.expectText(`,"allowed":`)
	l.Allowed = s.boolean()
	s.expectText(`,"limit":`)
	l.Limit = s.integer()
	s.expectText(`,"remaining":`)
	l.Remaining = s.integer()
	s.expectText(`,"reset_after":`)
	l.ResetAfter = s.seconds()
	s.expectText(`,"retry_after":`)
	l.RetryAfter = s.seconds()
	s.expect('}')
	return l
}

// decodeAny decodes all that encoding/json takes.
func decodeAny(body []byte, into []*reply) (r reply, results int, err error) {
	var q struct {
		anyReply
		Results []anyReply `json:"results"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return reply{}, 0, err
	}
	for i, one := range into[:min(len(into), len(q.Results))] {
		*one = q.Results[i].reply()
	}
	return q.reply(), len(q.Results), nil
}

// An anyReply is a reply as encoding/json decodes it.
type anyReply struct {
	Status     int     `json:"status"`
	Allowed    bool    `json:"allowed"`
	Policy     string  `json:"policy"`
	RetryAfter seconds `json:"retry_after"`
	Wait       seconds `json:"wait"`
	Degraded   bool    `json:"degraded"`
	Shadow     bool    `json:"shadow"`
	Receipt    string  `json:"receipt"`
	Within     seconds `json:"settle_within"`
	Renew      seconds `json:"renew_within"`
	Settled    bool    `json:"settled"`
	Already    bool    `json:"already"`
	Limits     []struct {
		Name       string  `json:"name"`
		Algorithm  string  `json:"algorithm"`
		Allowed    bool    `json:"allowed"`
		Limit      int64   `json:"limit"`
		Remaining  int64   `json:"remaining"`
		ResetAfter seconds `json:"reset_after"`
		RetryAfter seconds `json:"retry_after"`
		Refunded   int64   `json:"refunded"`
		Charged    int64   `json:"charged"`
	} `json:"limits"`

	Type   string `json:"type"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
}

func (r *anyReply) reply() reply {
	answer := Answer{
		Allowed: r.Allowed, RetryAfter: r.RetryAfter.duration(), Wait: r.Wait.duration(),
		Degraded: r.Degraded, Shadow: r.Shadow, Receipt: Receipt{Text: r.Receipt, within: r.Within.duration(), RenewWithin: r.Renew.duration()},
	}
	settlement := Settlement{Already: r.Already}
	for _, l := range r.Limits {
		if r.Settled {
			settlement.Limits = append(settlement.Limits, SettledLimit{Name: l.Name, Refunded: l.Refunded, Charged: l.Charged, Remaining: l.Remaining})
			continue
		}
		answer.Limits = append(answer.Limits, Limit{
			Name: l.Name, Algorithm: l.Algorithm, Allowed: l.Allowed, Limit: l.Limit, Remaining: l.Remaining,
			ResetAfter: l.ResetAfter.duration(), RetryAfter: l.RetryAfter.duration(),
		})
	}
	return reply{answer, r.Policy, settlement, Problem{Status: r.Status, Type: r.Type, Title: r.Title, Detail: r.Detail}}
}

// seconds are given to the millisecond.
type seconds float64

// duration returns s without the error of a floating-point number.
func (s seconds) duration() time.Duration {
	ms := math.Round(float64(s) * 1000)
	if ms > math.MaxInt64/float64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(ms) * time.Millisecond
}
