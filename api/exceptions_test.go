package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"weir/api/policy"
)

// The name comes before networks, these before beginnings of names, and of each
// the one that says the most.
func TestTheMostSpecificExceptionHolds(t *testing.T) {
	t.Parallel()
	p := newPolicy("api", fixed("per-minute", 1000, time.Minute))
	limit := func(n int64) policy.Terms { return policy.Terms{Limits: map[string]int64{"per-minute": n}} }
	p.Clients = clients(map[string]policy.Terms{
		"alice": limit(1), "user:alice": limit(2), "user:*": limit(3), "user:admin:*": limit(4), "user": limit(5),
		"0.0.0.0/0": limit(10), "10.0.0.0/8": limit(11), "10.1.0.0/16": limit(12), "10.1.2.3": limit(13), "10.*": limit(14),
		"2001:db8::/32": limit(20), "2001:db8:1::/48": limit(21), "2001:db8:1::7": limit(22),
	})
	s := newService(p)
	for client, want := range map[string]int64{
		"alice": 1, "user:alice": 2, "user:alicia": 3, "user:": 3, "user:admin": 3, "user:admin:": 4, "user:admin:x": 4, "user": 5,
		"use": 1000, "bob": 1000, "Alice": 1000,
		"192.0.2.1": 10, "10.2.0.1": 11, "10.1.2.4": 12, "10.1.2.3": 13, "::ffff:10.1.2.3": 13, "10.x": 14, "10.1.2.300": 14,
		"2001:db8:2::7": 20, "2001:DB8:1::8": 21, "2001:db8:1:0::7": 22, "2001:db9::": 1000,
		// Networks, as forward auth names them.
		"2001:db8:1::/64": 21, "2001:db8::/32": 20, "2001:db8::/31": 1000, "10.1.0.0/16": 12, "10.0.0.0/15": 11,
	} {
		r := s.admits(t, fmt.Sprintf(`{"policy":"api","client":%q}`, client))
		assert.Equal(t, want, r.Limits[0].Limit, client)
		r = s.do(t, http.MethodGet, "/v1/policies/api/clients/"+strings.ReplaceAll(client, "/", "%2F"), "")
		assert.Equal(t, want, r.Limits[0].Limit, client)
	}
}
