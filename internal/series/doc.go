// SPDX-License-Identifier: Apache-2.0

// Package series keeps the controller's bounded windows of samples in memory:
// what each GPU and each pod said during the last minutes, and which pod held
// which GPU meanwhile.
//
// A Target is one exposition that is scraped. All its values of one scrape
// share one time stamp, so a target is a ring of slots, each a stamp and a row
// of numbers without pointers, laid out [slot][series]. GPU gauges are kept as
// float32 and come back as the exposition wrote them (see narrow), counters
// and a pod's own metrics as float64. A target has one writer, its scraper;
// any number of readers may read meanwhile.
//
// Ownership is kept apart from samples, as tenures: pod p held device d from
// one time until another. A pod is given only the samples of its tenure, so a
// device's history does not move to its next pod.
//
// Missing is not zero. A slot without a value has none, a value older than the
// caller's maxAge is absent, and a sum of which a part is missing is absent:
//
//	mean, max   of the pod's devices that have a fresh value; one is enough
//	            (a dead GPU does not hide seven)
//	sum, rate   absent unless every device of the pod has one: a part of a sum
//	            looks like a lower load
//	none        the device's value if the pod has one device, else absent
//
// A pod runs on one node. If several targets expose its devices (an agent and a
// dcgm-exporter on the same node), targets of a higher rank do not assign devices (see
// TargetLabels.Rank). Of the others, the value is read from the one in which most of
// the pod's devices have a value of the field; of equal ones, from the one with the
// newest value.
package series
