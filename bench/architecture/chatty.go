package architecture

import (
	"time"

	"weir/bench/traffic"
)

// Chatty servers: each instance counts what it admits and tells all others,
// who hear of it after a delay.
type Chatty struct {
	limit   Limit
	turn    turn
	delay   time.Duration
	clients perClient[chattyClient]
}

type chattyClient struct {
	heard *news    // what all have been told of
	own   []recent // what each instance knows of itself before that
}

// NewChatty returns so many instances that requests are sent to in turn.
func NewChatty(limit Limit, instances int, delay time.Duration) *Chatty {
	return &Chatty{limit: limit, turn: turn{instances: instances}, delay: delay, clients: newPerClient(func() *chattyClient {
		c := &chattyClient{limit.newNews(), make([]recent, instances)}
		for i := range c.own {
			c.own[i].length = min(delay, limit.Window)
		}
		return c
	})}
}

// Take implements Architecture.
func (c *Chatty) Take(a traffic.Arrival) (Outcome, error) {
	client := c.clients.of(a.Client)
	own := &client.own[c.turn.next()]
	if client.heard.count(a.At)+own.count(a.At) >= c.limit.Requests {
		return Outcome{}, nil
	}
	client.heard.add(a.At, a.At+c.delay)
	own.add(a.At)
	return Outcome{Admitted: true, Messages: c.turn.instances - 1}, nil
}

// Bounds implements Architecture: until the others have told of the last that
// the limit allows, they go on. An instance knows of 1/n of what is on its way,
// as it did that itself, and no instance admits more than the limit.
func (c *Chatty) Bounds(rate float64) (least, most float64) {
	limit, n := float64(c.limit.Requests), float64(c.turn.instances)
	all := min(limit+rate*c.delay.Seconds()*(n-1)/n, n*limit, c.limit.inWindow(rate))
	return all, all
}
