package api

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"weir/api/decide"
)

// charge answers POST /v1/charge.
func (s *Server) charge(c echo.Context) error {
	b, err := readBody(c.Request(), maxCheckBytes)
	if err != nil {
		return err
	}
	defer b.release()
	q := decide.Charge{Cost: 1}
	err = b.whole(func(name []byte) (err error) {
		switch string(name) {
		case "policy":
			q.Policy, err = b.string("policy", b.policy)
		case "client":
			q.Client, err = b.string("client", "")
		case "cost":
			q.Cost, err = b.integer("cost", "")
		case "id":
			q.ID, err = b.string("id", "")
		default:
			err = unknownField(string(name), "policy, client, cost, id")
		}
		return err
	})
	if err != nil {
		return err
	}
	a, err := s.active.Load().Charge(q)
	if err != nil {
		return err
	}
	writeHeaders(c, a)
	return s.writeBody(c, a, http.StatusOK)
}
