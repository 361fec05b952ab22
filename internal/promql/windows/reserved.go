// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// IsScraped reports whether a metric's name belongs to series that are scraped or that
// the controller adds: the rules of a namespace must not record it.
func IsScraped(metric string) bool {
	for _, prefix := range []string{"DCGM_", "dcgm_", "gpupilot_", "kube_", "scrape_"} {
		if strings.HasPrefix(metric, prefix) {
			return true
		}
	}
	_, field := names.Resolve(metric)
	return field || metric == "up" || metric == "ALERTS" || metric == "ALERTS_FOR_STATE"
}
