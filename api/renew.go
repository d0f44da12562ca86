package api

import (
	"cmp"
	"net/http"

	"github.com/labstack/echo/v4"

	"weir/api/receipt"
)

// renew answers POST /v1/renew.
func (s *Server) renew(c echo.Context) error {
	b, err := readBody(c.Request(), maxCheckBytes)
	if err != nil {
		return err
	}
	defer b.release()
	key := s.receipts.Load()
	r, invalid := receipt.Receipt{}, errMissingReceipt
	err = b.whole(func(name []byte) (err error) {
		if string(name) != "receipt" {
			return unknownField(string(name), "receipt")
		}
		r, invalid, err = b.receipt(key)
		return err
	})
	if err = cmp.Or(err, invalid); err != nil {
		return err
	}
	within, err := s.active.Load().Renew(&r)
	if err != nil {
		return err
	}
	out, _ := key.Append([]byte(`{"receipt":"`), &r) // about as long as the one before
	out = appendSeconds(append(out, `","renew_within":`...), within)
	return writeBlob(c, http.StatusOK, jsonType, append(out, "}\n"...))
}
