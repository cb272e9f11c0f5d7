"""Which data sets there are, where they come from, and what they must look like."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and what it must look like.

    `sha256` is that of the CSV file; for diabetes, which has no file, that of the features and the
    target beside each other, row after row, as little-endian doubles.

    >>> from scoreascent.datasets import REGISTRY
    >>> isinstance(REGISTRY["yacht"], Source)
    True
    """

    title: str
    reference: str
    licence: str
    rows: int
    features: int
    target: str
    sha256: str
    uci: int | None = None
    doi: str | None = None

    def __str__(self) -> str:
        known = [self.reference]
        known += [f"UCI id {self.uci}"] if self.uci is not None else []
        known += [f"doi {self.doi}"] if self.doi is not None else []
        return f"{self.title} ({'; '.join(known)})"


# the paper's eight first; a new data set is a row here
REGISTRY: dict[str, Source] = {
    "yacht": Source(
        "Yacht Hydrodynamics",
        "Gerritsma, Onnink and Versluis, 1981",
        "CC BY 4.0",
        rows=308,
        features=6,
        target="residuary_resistance",
        sha256="0f076fe825b9df72135d8e84095523323e4347dac78045298f62d71b2d1442db",
        uci=243,
        doi="10.24432/C5XG7R",
    ),
    "concrete": Source(
        "Concrete Compressive Strength",
        "Yeh, Cement and Concrete Research 28(12), 1998",
        "CC BY 4.0",
        rows=1030,
        features=8,
        target="compressive_strength_mpa",
        sha256="763bce7fcfbc7a04855f97a734d20fcf350890a9e53b2baac4370d6b3975438f",
        uci=165,
        doi="10.24432/C5PK67",
    ),
    "airfoil": Source(
        "Airfoil Self-Noise",
        "Brooks, Pope and Marcolini, NASA RP-1218, 1989",
        "CC BY 4.0",
        rows=1503,
        features=5,
        target="sound_pressure_level_db",
        sha256="6175780c3c69e8bbd417a9de41d44040b6bf072079146dcf5d22c8961ebee223",
        uci=291,
        doi="10.24432/C5VW2C",
    ),
    "energy": Source(
        "Energy Efficiency",
        "Tsanas and Xifara, Energy and Buildings 49, 2012",
        "CC BY 4.0",
        rows=768,
        features=8,
        target="heating_load",
        sha256="de96ade93afe05be107b571c5a201a9c6247b1ac74fb06154799bc7162894920",
        uci=242,
        doi="10.24432/C51307",
    ),
    "wine": Source(
        "Wine Quality, red",
        "Cortez, Cerdeira, Almeida, Matos and Reis, Decision Support Systems 47(4), 2009",
        "CC BY 4.0",
        rows=1599,
        features=11,
        target="quality",
        sha256="76bb397799995e9bdf3eafaefc25fbf74b0fbc3d278059eacd0daf6d440555f8",
        uci=186,
        doi="10.24432/C56S3T",
    ),
    "boston": Source(
        "Boston Housing",
        "Harrison and Rubinfeld, J. Environ. Economics & Management 5, 1978; StatLib, formerly UCI",
        "none found",
        rows=506,
        features=13,
        target="medv",
        sha256="dabe774132cf1f35464a048f213b1d4f39f64ad9efb1157d64d457702f72e19b",
    ),
    "sml": Source(
        "SML2010",
        "Romeu-Guallart and Zamora-Martinez, 2014",
        "CC BY 4.0",
        rows=4137,
        features=22,
        target="humedad_habitacion_sensor",
        sha256="a6f83ed4745017898cc449c1f09b8aa74fc8f2f8055784d581e75080be398f01",
        uci=274,
        doi="10.24432/C5RS3S",
    ),
    "gas": Source(
        "Gas Sensor Array Drift Dataset at Different Concentrations, the ethanol measurements",
        "Vergara et al., Sensors and Actuators B 166-167, 2012",
        "CC BY 4.0; its description says research use only",
        rows=2565,
        features=128,
        target="log1p_ethanol_ppmv",
        sha256="f0ed0f38741cb797361ee57f93147a71c5d7fe21d92cee3190cebcd9cfc374e7",
        uci=270,
        doi="10.24432/C5MK6M",
    ),
    "diabetes": Source(
        "Diabetes, with scikit-learn",
        "Efron, Hastie, Johnstone and Tibshirani, Annals of Statistics 32(2), 2004",
        "that of scikit-learn, BSD 3-clause",
        rows=442,
        features=10,
        target="progression",
        sha256="839c546b0b4ac02c2e6cbe5e5c92313cefa993446c9733e9b49477cc3f96e104",
    ),
}
AVAILABLE = tuple(REGISTRY)
