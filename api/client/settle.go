package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"unicode/utf8"
)

// ErrSettledLater comes with the reason why weir couldn't be asked to settle a receipt:
// the Client goes on trying, until the receipt's time is over or Close.
var ErrSettledLater = errors.New("client: the receipt is settled later")

// Settle says what a check has cost in the end: what wasn't used is given back where it
// was counted, and what was used beyond it is counted now, whatever is left. Only the
// first settlement of a receipt counts, so it may be repeated. The zero Receipt has
// nothing to settle. The error is a *Problem, of status 410 if the receipt is too old; or
// an ErrSettledLater if weir couldn't be asked, or not before ctx ended, or the answer has
// a status of 500 or more, or a proxy's 408 or 429. Up to 10,000 receipts wait so; of one
// more, which isn't settled later, the error is the reason alone.
func (c *Client) Settle(ctx context.Context, r Receipt, cost int64) (Settlement, error) {
	if err := validateCost(cost); err != nil {
		return Settlement{}, err
	}
	return c.settle(ctx, r, cost)
}

func validateCost(cost int64) error {
	if cost < 0 || cost > maxCost {
		return wrong("cost %d must be from 0 to %d", cost, maxCost)
	}
	return nil
}

// settle is Settle; a cost that is negative is what was reserved.
func (c *Client) settle(ctx context.Context, r Receipt, cost int64) (Settlement, error) {
	if r.Text == "" {
		return Settlement{}, nil
	}
	encoded, err := encodeSettlement(r, cost)
	if err != nil {
		return Settlement{}, err
	}
	reply, err := c.settler.batcher.ask(ctx, encoded)
	if err == nil {
		_, err = reply.answer()
	}
	if retryable(err) && c.settler.later(waiting{encoded, r.Until}) {
		err = fmt.Errorf("%w: %w", ErrSettledLater, err)
	}
	return reply.settlement, err
}

const maxCost = 1_000_000_000

// Renew has what is under way go on, by the Receipt that it returns in the place of r. The
// error is a *Problem: of status 409 if its time was over and there is no room, of 410 if
// r is too old; or it is as in Peek, and r may be tried again.
func (c *Client) Renew(ctx context.Context, r Receipt) (Receipt, error) {
	body, err := json.Marshal(struct {
		Receipt string `json:"receipt"`
	}{r.Text})
	if err != nil {
		return r, err
	}
	renewed, err := c.askOne(ctx, http.MethodPost, "/v1/renew", body, http.StatusOK)
	if err == nil {
		r.Text, r.RenewWithin = renewed.Receipt.Text, renewed.Receipt.RenewWithin
	}
	return r, err
}

// A Charge is a cost that counts whatever is left.
type Charge struct {
	// Policy and Client are those of a Check.
	Policy string `json:"policy"`
	Client string `json:"client"`
	// Cost is at most 1,000,000,000; 0 means 1, so don't charge what has cost nothing.
	Cost int64 `json:"cost,omitempty"`
	// ID tells the charge from others of the client, so that it counts once however often
	// it is sent, in at most 1024 bytes of UTF-8; "" means that each counts.
	ID string `json:"id,omitempty"`
}

// Charge counts a cost that nobody asked about before. The answer says how the client
// stands then; it is allowed, and RetryAfter is until no more is in use than the limits. The
// error is as in Peek: then the charge may have counted.
func (c *Client) Charge(ctx context.Context, q Charge) (Answer, error) {
	if err := validateClient(q.Client); err != nil {
		return Answer{}, err
	}
	if !utf8.ValidString(q.ID) { // what takes its place in JSON might be another charge's
		return Answer{}, wrong("id %q is not UTF-8", q.ID)
	}
	body, err := json.Marshal(q)
	if err != nil {
		return Answer{}, err
	}
	r, err := c.askOne(ctx, http.MethodPost, "/v1/charge", body, http.StatusOK)
	return r.Answer, err
}
