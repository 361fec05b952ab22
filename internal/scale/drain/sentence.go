// SPDX-License-Identifier: Apache-2.0

package drain

import "fmt"

// Sentence describes a step for a person on call: a pod that is removed with its requests,
// or pods that serve again, or pods that leave for at most a time.
func Sentence(ungated string, back, leaving int32, left string, before, after int32) string {
	switch {
	case ungated != "":
		return fmt.Sprintf("%s is removed with its requests: it does not declare the readiness gate gpupilot.dev/serving", ungated)
	case back == 1:
		return fmt.Sprintf("a replica that was to be removed serves again: %d", after)
	case back > 1:
		return fmt.Sprintf("%d replicas that were to be removed serve again: %d", back, after)
	case leaving == 1:
		return fmt.Sprintf("a replica finishes its requests before it is removed, for at most %s: keep %d instead of %d", left, after, before)
	}
	return fmt.Sprintf("%d replicas finish their requests before they are removed, for at most %s: keep %d instead of %d", leaving, left, after, before)
}
