// SPDX-License-Identifier: Apache-2.0

package api

import "testing"

// A viewer sees the metadata of the metrics that the viewer's series have.
func TestMetadataOfViewers(t *testing.T) {
	srv := newServer(t)
	f := func(token, want string) {
		t.Helper()
		if code, body := get(t, srv, token, "/api/v1/metadata"); code != 200 || body != `{"status":"success","data":`+want+`}` {
			t.Errorf("%s: %d %s, want %s", token, code, body, want)
		}
	}
	f("team-a", `{"gpu":[{"type":"gauge","help":"Utilisation.","unit":"percent"}]}`)
	f("nobody", `{}`)
}

// The series of a histogram and of a counter have the metadata of their family.
func TestFamilies(t *testing.T) {
	a := New(Deps{Metadata: func(_ Viewer, family string) []Metadata {
		return map[string][]Metadata{"latency": {{Type: "histogram"}}, "requests": {{Type: "counter"}}, "own_total": {{Type: "gauge"}}}[family]
	}})
	for name, want := range map[string]string{
		"latency_bucket": "latency histogram", "latency_sum": "latency histogram", "requests_total": "requests counter", "own_total": "own_total gauge", "other_count": "", "x": "",
	} {
		got := ""
		if family, list := a.describe(Viewer{}, name); len(list) > 0 {
			got = family + " " + list[0].Type
		}
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
