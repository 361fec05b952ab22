// SPDX-License-Identifier: Apache-2.0

// Package series keeps the controller's bounded windows of samples in memory: the
// values of each GPU and each pod during the last minutes, and which pod holds which
// GPU since when.
//
// A Target is one metrics endpoint that is scraped. All its values of one scrape have
// the same timestamp. A target is therefore a ring of slots, each a timestamp and a
// row of numbers, laid out [slot][series] without pointers. A target has one writer, its
// scraper, and any number of concurrent readers. It is a lock and the parts that the lock
// guards: columns, devices, holdings and exposures. Each part knows its size in bytes, and
// the target's account in the ledger is their sum.
//
// Ownership is stored separately from samples, as tenures: pod p holds device d since a
// time. A pod has only the samples of its tenure, so that a device's history does not
// move to its next pod.
//
// Missing is not zero. A value older than the caller's maxAge is absent, and so is a
// sum with a missing addend:
//
//	mean, max   over the pod's devices with a fresh value; one is enough
//	            (one dead GPU does not hide seven)
//	sum, rate   absent unless every device of the pod has a value: a partial sum
//	            looks like a lower load
//	none        the device's value if the pod has one device, else absent
//
// If several targets expose the devices of a pod, those of a higher rank do not assign
// devices (see TargetLabels.Rank). The value is that of the target in which most of the
// pod's devices have one; of equal targets, of the one with the newest value.
package series
