package api

import (
	"cmp"
	"encoding/json"
	"net/http"

	"github.com/labstack/echo/v4"

	"weir/api/decide"
	"weir/api/receipt"
	"weir/counters"
)

// settle answers POST /v1/settle.
func (s *Server) settle(c echo.Context) error {
	q, err := s.readSettlement(c)
	if err != nil {
		return err
	}
	s.active.Load().Settle([]decide.Settling{q}, func(_ int, settled *decide.Settlement, failed error) {
		if err = failed; err == nil {
			err = writeSettlement(c, settled)
		}
	})
	return err
}

func (s *Server) readSettlement(c echo.Context) (q decide.Settling, err error) {
	b, err := readBody(c.Request(), maxCheckBytes)
	if err != nil {
		return q, err
	}
	defer b.release()
	return b.decodeSettlement(s.receipts.Load())
}

func writeSettlement(c echo.Context, settled *decide.Settlement) error {
	return writeAppended(c, http.StatusOK, jsonType, func(b []byte) []byte { return append(appendSettlement(b, settled, 0), '\n') })
}

// settleBatch answers POST /v1/settle/batch. A receipt that can't be settled gets the
// status of its problem, and the others are still settled.
func (s *Server) settleBatch(c echo.Context) error {
	b, err := readBody(c.Request(), maxBatchBytes)
	if err != nil {
		return err
	}
	defer b.release()
	list, err := b.decodeSettlements(s.receipts.Load())
	if err != nil {
		return err
	}
	results := make([][]byte, len(list))
	s.active.Load().Settle(list, func(i int, settled *decide.Settlement, err error) {
		if err == nil {
			results[i] = appendSettlement(nil, settled, http.StatusOK)
		} else {
			results[i], _ = json.Marshal(s.problemOf(err, c)) // can't fail for a problem
		}
	})
	out := append([]byte(nil), `{"results":[`...)
	for _, result := range results {
		out = append(appendComma(out), result...)
	}
	return writeBlob(c, http.StatusOK, jsonType, append(out, "]}\n"...))
}

// errForeignReceipt is the problem of a receipt that no instance has given.
var errForeignReceipt error = badRequest("receipt is none that this service has given, or was given with other tokens")

// errMissingReceipt is the problem of a settlement or a renewal that has no receipt.
var errMissingReceipt error = badRequest("receipt is missing; it is what a check with \"settle\": true has answered")

// receipt reads a receipt. invalid is the problem of one that isn't weir's; err is one of the whole
// body.
func (b *body) receipt(key *receipt.Key) (r receipt.Receipt, invalid, err error) {
	text, err := b.text("receipt")
	if err == nil {
		r, invalid = openReceipt(key, text)
	}
	return r, invalid, err
}

func openReceipt(key *receipt.Key, text []byte) (r receipt.Receipt, invalid error) {
	r, err := key.Open(text)
	if err != nil {
		invalid = errForeignReceipt
	}
	return r, invalid
}

// asReserved is the cost of a settlement that names none.
const asReserved = -1

// decodeSettlement decodes a body that is one settlement. The error is a problem.
func (b *body) decodeSettlement(key *receipt.Key) (q decide.Settling, err error) {
	p := compactJSON{text: b.bytes.Bytes()}
	text, cost := p.settlement(asReserved)
	if !p.ended() {
		q, err = b.settlement(key)
		return q, b.end(err)
	}
	if q.Receipt, q.Err = openReceipt(key, text); cost == asReserved {
		cost = q.Cost
	}
	q.Consumed = cost
	return q, nil
}

// settlement decodes one settlement. Its Err may be a problem: the error is one of the whole
// body.
func (b *body) settlement(key *receipt.Key) (decide.Settling, error) {
	q := decide.Settling{Err: errMissingReceipt, Consumed: asReserved}
	var wrongCost error
	err := b.object("", func(name []byte) (err error) {
		switch string(name) {
		case "receipt":
			q.Receipt, q.Err, err = b.receipt(key)
		case "cost":
			if q.Consumed, err = b.integer("cost", ""); err == nil && q.Consumed < 0 {
				wrongCost = badRequest("cost %d must be a whole number from 0 to %d", q.Consumed, int64(counters.MaxCost))
			}
		default:
			err = unknownField(b.path(string(name)), "receipt, cost")
		}
		return err
	})
	if q.Err = cmp.Or(wrongCost, q.Err); q.Consumed == asReserved {
		q.Consumed = q.Cost
	}
	return q, err
}

// decodeSettlements decodes a body that is many settlements. The error is a problem.
func (b *body) decodeSettlements(key *receipt.Key) (list []decide.Settling, err error) {
	err = b.whole(func(name []byte) error {
		if string(name) != "settlements" {
			return unknownField(string(name), "settlements")
		}
		list = []decide.Settling{}
		return b.array("settlements", func() error {
			q, err := b.settlement(key)
			list = append(list, q)
			return err
		})
	})
	if err == nil && list == nil {
		err = badRequest("settlements is missing; it is the array of the receipts to settle")
	}
	return list, err
}
