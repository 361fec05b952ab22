// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"
)

func TestMinuteQueries(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 3, 40, 0, time.UTC)
	f := func(query, want string) {
		t.Helper()
		v, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		q, err := parseMinuteQuery(v, now)
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprint(q.To.Sub(q.From), " ", q.Step, " ", q.Metrics)
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	f("", "24h1m40s 2m0s []")
	f("since=10m", "10m40s 1m0s []")
	f("since=336h&step=30m&metric=gpupilot_autoscaler_signal_value&metric=gpupilot_autoscaler_replicas{state=%22serving%22}",
		`336h3m40s 30m0s [gpupilot_autoscaler_signal_value gpupilot_autoscaler_replicas{state="serving"}]`)
	f("metric=replicas{state=serving}", `metric is "replicas{state=serving}": want NAME{LABEL="VALUE",…} instead of "state=serving}"`)
	f("metric=", `metric is "": no name of a metric`)
	f("since=337h", `since is "337h", want a duration from 1m to 336h`)
	f("since=soon", `since is "soon"`)
	f("step=90s", `step is "90s", want whole minutes`)
	f("step=0s", `step is "0s"`)
	f(strings.Repeat("metric=x&", 65), "metric is given 65 times, want at most 64")
}

func TestMinutesAreServed(t *testing.T) {
	f := func(path string, want int) {
		t.Helper()
		if r := get(t, path); r.Code != want {
			t.Errorf("%s: %d %s, want %d", path, r.Code, r.Body, want)
		}
	}
	f("/api/v1/minutes?namespace=llm&name=chat", 200)
	f("/api/v1/minutes?namespace=llm&name=nope", 404)
	f("/api/v1/minutes?namespace=llm&name=chat&since=1y", 400)
	f("/api/v1/minutes?name=chat", 400)
}
