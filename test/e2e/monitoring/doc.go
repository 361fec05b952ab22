// SPDX-License-Identifier: Apache-2.0

// Package monitoring tests the Grafana dashboards and the Prometheus rules of
// deploy/chart: promtool checks the rules and runs their unit tests, and every query of
// a panel and of a rule is run by a real Prometheus that scrapes real agents and a real
// controller.
package monitoring
