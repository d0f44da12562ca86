package api

import (
	"net/http"
	"strings"
)

// traceOf returns the id of the trace that r is part of, by its traceparent as W3C's Trace
// Context has it; or "" if it has none, or one that nobody keeps.
func traceOf(r *http.Request) string {
	values := r.Header["Traceparent"]
	if len(values) != 1 || len(values[0]) < len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01") {
		return ""
	}
	parent := values[0]
	for i, b := range []byte(parent[:55]) {
		switch i {
		case 2, 35, 52:
			if b != '-' {
				return ""
			}
		default:
			if (b < '0' || b > '9') && (b < 'a' || b > 'f') {
				return ""
			}
		}
	}
	version, id, sampled := parent[:2], parent[3:35], strings.IndexByte("13579bdf", parent[54]) >= 0
	longer := len(parent) > 55 // as one of a later version may be
	if version == "ff" || version == "00" && longer || longer && parent[55] != '-' || id == strings.Repeat("0", 32) || !sampled {
		return ""
	}
	return id
}
