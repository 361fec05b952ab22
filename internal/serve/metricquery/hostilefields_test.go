// SPDX-License-Identifier: Apache-2.0

//go:build linux

package metricquery

import (
	"encoding/json"
	"flag"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/test/weighttest"
)

var hostileValues = flag.Int("hostile", 2, "how many hostile values of each field to try; 0: all")

// Each field of a MetricQuery has each hostile value in turn, as if the API server had let it pass. What is written and
// reported about it is bounded, and costs no more than a harmless one, beyond reading it.
func TestHostileFields(t *testing.T) {
	bases := map[string]string{
		"query":      `{"metricName": "depth", "query": {"promql": "sum(load)"}}`,
		"gpu":        `{"gpu": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat"}, "metric": "Utilization", "stat": "avg", "window": "1m", "inUse": "allocated"}}`,
		"autoscaler": `{"autoscaler": {"name": "chat"}}`,
	}
	fields, runs := map[string]bool{}, 0
	for name, spec := range bases {
		fresh := func() *v1alpha1.MetricQuery {
			q := query("a", "queue", 0)
			q.Spec = v1alpha1.MetricQuerySpec{}
			if err := json.Unmarshal([]byte(spec), &q.Spec); err != nil {
				t.Fatal(err)
			}
			return q
		}
		// written is what the status says, and what is reported.
		serve := func(q *v1alpha1.MetricQuery) (written int) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, fresh())
				r.put(q, false)
				time.Sleep(20 * time.Second)
				synctest.Wait()
				var is v1alpha1.MetricQuery
				if err := r.client.Get(r.ctx, client.ObjectKeyFromObject(q), &is); err != nil {
					t.Fatal(err)
				}
				status, _ := json.Marshal(is.Status)
				problems, _ := json.Marshal(r.Problems())
				written = len(status) + len(problems)
			})
			return written
		}
		harmless := weighttest.Measure(func() { serve(fresh()) })
		for _, m := range weighttest.Sample(weighttest.Mutants[v1alpha1.MetricQuery](), *hostileValues, rand.New(rand.NewPCG(1, 6))) {
			if strings.HasPrefix(m.Field, "ObjectMeta") || strings.HasPrefix(m.Field, "TypeMeta") {
				continue
			}
			fields[m.Field] = true
			q := fresh()
			what := m.Set(q)
			whole, err := json.Marshal(q)
			if err != nil {
				continue // JSON has no year -1
			}
			runs++
			written := 0
			weighttest.Compare(t, name+", "+what, harmless, len(whole), func() { written = serve(q) })
			if written > 8<<10 {
				t.Errorf("%s, %s: %d bytes are written and reported", name, what, written)
			}
		}
	}
	t.Logf("%d fields, %d runs", len(fields), runs)
	if len(fields) < 15 {
		t.Errorf("only %d fields", len(fields))
	}
}
