// SPDX-License-Identifier: Apache-2.0

// Package kedascaler is an external and external-push scaler of KEDA: the gRPC service
// that KEDA's triggers of these types call. A trigger names a GPU metric of the
// ScaledObject's own workload, a GPUAutoscaler whose desired replicas are used, or a
// MetricQuery.
//
// The rules of trust:
//
//   - The workload is the scale target of the ScaledObject in the API server. A request
//     names only the ScaledObject.
//   - A request must carry the metadata of one of the ScaledObject's own triggers. A
//     client can therefore read only what the owner of the namespace has configured.
//   - Everything that a trigger names is in the ScaledObject's namespace.
//   - A client proves with a certificate about which namespaces it may ask, see Clients.
//
// Missing is not zero: without a fresh value a request fails with Unavailable. KEDA and
// the HorizontalPodAutoscaler then keep the replicas.
package kedascaler
