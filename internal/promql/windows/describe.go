// SPDX-License-Identifier: Apache-2.0

package windows

// HelpOf returns the help text of a gauge that the store adds to those of pages. ok is
// false for other metrics.
func HelpOf(metric string) (help string, ok bool) {
	for _, m := range podMetrics() {
		if m.name == metric {
			return m.help, true
		}
	}
	help, ok = map[string]string{
		upName:                                  "1 if the last scrape of the target succeeded.",
		"scrape_duration_seconds":               "Duration of the scrape.",
		"scrape_samples_scraped":                "Values of the target's page.",
		"scrape_samples_post_metric_relabeling": "Values of the target's page, which are not relabelled.",
	}[metric]
	return help, ok
}
