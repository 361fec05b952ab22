// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"github.com/prometheus/client_golang/prometheus"
)

// maxNamedTargets bounds the exporters that are named on /metrics.
const maxNamedTargets = 20

var (
	namesDesc        = prometheus.NewDesc("gpupilot_query_names", "Names of metrics that queries and rules keep in the windows.", nil, nil)
	refusedNamesDesc = prometheus.NewDesc("gpupilot_query_names_refused_total", "Requests of queries for a name that were refused, because queries of the same payer keep 500 others or 32 fields of GPUs, or all queries 10,000.", nil, nil)
	contradictedDesc = prometheus.NewDesc("gpupilot_query_contradicted_series", "Series of exporters whose pod the API server contradicts, so that they have the label contradicted_namespace.", nil, nil)
	exporterDesc     = prometheus.NewDesc("gpupilot_query_contradicted_target_series", "Such series of each exporter; of the 20 with the most.", []string{"target"}, nil)
	groupingsDesc    = prometheus.NewDesc("gpupilot_query_grouping_bytes", "Memory of the labels that groupings of queries keep; at most 32 MiB.", nil, nil)
	podsDesc         = prometheus.NewDesc("gpupilot_query_pods", "Pods in the index for kube_pod_*, with deleted ones; 0 while no query reads it.", nil, nil)
	podBytesDesc     = prometheus.NewDesc("gpupilot_query_pods_memory_bytes", "Memory of that index.", nil, nil)
	podLimitDesc     = prometheus.NewDesc("gpupilot_query_pods_memory_limit_bytes", "Limit of that memory.", nil, nil)
	refusedPodsDesc  = prometheus.NewDesc("gpupilot_query_pods_refused_total", "Pods that were left out of that index because of its limit: those of the namespaces with the most.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Store) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{namesDesc, refusedNamesDesc, contradictedDesc, exporterDesc, groupingsDesc, podsDesc, podBytesDesc, podLimitDesc, refusedPodsDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Store) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, l ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, l...)
	}
	counter := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	names, refused := s.wanted.count()
	gauge(namesDesc, float64(names))
	counter(refusedNamesDesc, refused)
	total, exporters := s.index.tally.most(maxNamedTargets)
	gauge(contradictedDesc, float64(total))
	for _, x := range exporters {
		gauge(exporterDesc, float64(x.series), x.target)
	}
	gauge(groupingsDesc, float64(s.index.groupings.bytes.Load()))
	p := &s.pods
	p.mu.Lock()
	defer p.mu.Unlock()
	gauge(podsDesc, float64(len(p.pods)+len(p.gone)))
	gauge(podBytesDesc, float64(p.budget.total))
	gauge(podLimitDesc, float64(p.budget.limit))
	counter(refusedPodsDesc, p.budget.refused)
}
