// SPDX-License-Identifier: Apache-2.0

// Package chart tests deploy/chart and deploy/kustomize with the libraries behind helm and kustomize: what is rendered,
// which values are refused, that copies and generated files are current, and an installation in a real control plane.
//
// TestInstallNode installs the chart on the real node of package realnode, with the images of make images. By hand:
//
//	make kube all images ARCH=amd64 && cd test/chart && go test -count=1 -v -tags e2e -run TestInstallNode .
//
// It is a module of its own, so that Helm's dependencies stay out of the main module.
package chart
