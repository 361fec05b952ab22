// SPDX-License-Identifier: Apache-2.0

// Package words writes the numbers of a decision's sentences.
package words

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Share writes a share of nearly all requests in percent, with its decimals.
func Share(x float64) string {
	return strconv.FormatFloat(math.Round(x*1e4)/100, 'f', -1, 64) + " %"
}

// Minutes writes a time in minutes, or in seconds below one minute.
func Minutes(d time.Duration) string {
	if d < time.Minute {
		return Duration(d)
	}
	return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
}

// Rate writes requests/s with one decimal, or with two digits below 1.
func Rate(x float64) string {
	switch {
	case x >= 1000:
		return strconv.FormatFloat(x, 'f', 0, 64)
	case x >= 1 || x == 0:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'g', 2, 64)
}

// Quantity writes a value with three digits, and its unit.
func Quantity(x float64, unit string) string {
	digits := 0
	switch a := math.Abs(x); {
	case a == 0 || a >= 100:
	case a >= 10:
		digits = 1
	default:
		digits = 2
	}
	s := strconv.FormatFloat(x, 'f', digits, 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	if math.Abs(x) >= 1e9 {
		s = strconv.FormatFloat(x, 'g', 3, 64)
	}
	if unit == "" || unit == "ratio" {
		return s
	}
	return s + " " + unit
}

// Percent writes a ratio in percent.
func Percent(x float64) string { return Quantity(100*x, "%") }

// Duration writes a time in minutes from ten minutes on, else in seconds or milliseconds.
func Duration(d time.Duration) string {
	switch {
	case d >= 10*time.Minute:
		return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
	case d >= time.Second:
		return fmt.Sprintf("%d s", int(d.Round(time.Second).Seconds()))
	}
	return fmt.Sprintf("%d ms", d.Milliseconds())
}

// Latency writes a limit in seconds, such as 50ms.
func Latency(seconds float64) string {
	return time.Duration(math.Round(seconds * float64(time.Second))).Round(time.Microsecond).String()
}

// Replicas writes a number of replicas.
func Replicas(n int32) string {
	if n == 1 {
		return "1 replica"
	}
	return fmt.Sprintf("%d replicas", n)
}

// Replaced says how many of the replicas start in place of others.
func Replaced(n, of int32) string {
	if n == 1 {
		return fmt.Sprintf("1 of %d is being replaced", of)
	}
	return fmt.Sprintf("%d of %d are being replaced", n, of)
}

// UpOrDown names a direction.
func UpOrDown(down bool) string {
	if down {
		return "down"
	}
	return "up"
}
